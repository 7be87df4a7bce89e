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
    let disks = directories.iter().filter_map(|directory| {
        let directory = directory.ancestors().find(|it| it.is_dir())?;
        let found = statvfs(directory).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(Disk {
            directory: directory.to_owned(),
            bytes: (bytes(found.f_bavail), bytes(found.f_blocks)),
            files: (found.f_favail, found.f_files),
            is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    });
    let mut disks: Vec<_> = disks.collect();
    disks.dedup();
    disks
}
