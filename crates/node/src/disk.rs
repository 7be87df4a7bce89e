//! Reads the free space of the file systems that contain leases.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::fs::{StatVfsMountFlags, statvfs};

/// Free space of a file system that contains leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// A directory on the file system.
    pub directory: PathBuf,
    /// Free and total space, in bytes.
    pub bytes: (u64, u64),
    /// Free and total inodes; a total of 0 means no limit.
    pub files: (u64, u64),
    /// Whether the file system is mounted read-only.
    pub is_read_only: bool,
}

/// Returns the file system of each directory. For a directory that does not exist, uses its closest
/// existing parent. Skips a file system whose state cannot be read.
pub(super) fn disks(directories: &BTreeSet<PathBuf>) -> Vec<Disk> {
    let existing = |path: &PathBuf| Some(path.ancestors().find(|it| it.is_dir())?.to_owned());
    let existing: BTreeSet<_> = directories.iter().filter_map(existing).collect();
    let disks = existing.into_iter().filter_map(|directory| {
        let found = statvfs(&directory).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(Disk {
            directory,
            bytes: (bytes(found.f_bavail), bytes(found.f_blocks)),
            files: (found.f_favail, found.f_files),
            is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    });
    disks.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_parent_of_missing_directories_is_read_once() {
        let root = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| root.path().join(name));
        fs::create_dir(&b).unwrap();
        let disks = disks(&[a, b.clone(), c].into());
        let found: Vec<_> = disks.into_iter().map(|it| it.directory).collect();
        assert_eq!(found, [root.path().to_owned(), b]);
    }
}
