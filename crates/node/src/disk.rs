//! The file systems on which leases lie.

use std::collections::BTreeSet;
use std::path::PathBuf;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::attachments::Place;

/// What is left of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// A directory on it.
    pub directory: PathBuf,
    /// Room for files, in bytes, of how many.
    pub bytes: (u64, u64),
    /// Files that can be made, of how many; of 0 where there is no limit.
    pub files: (u64, u64),
    /// Nothing can be written.
    pub is_read_only: bool,
}

/// Of the directories that are there, or of those that they would be made in.
pub(super) fn disks(places: &BTreeSet<Place>) -> Vec<Disk> {
    let disks = places.iter().filter_map(|Place { directory }| {
        let directory = directory.ancestors().find(|it| it.is_dir())?;
        let found = statvfs(directory).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
        Some(Disk {
            directory: directory.to_owned(),
            bytes: (bytes(found.blocks_available()), bytes(found.blocks())),
            files: (found.files_available(), found.files()),
            is_read_only: found.flags().contains(FsFlags::ST_RDONLY),
        })
    });
    let mut disks: Vec<_> = disks.collect();
    disks.dedup();
    disks
}
