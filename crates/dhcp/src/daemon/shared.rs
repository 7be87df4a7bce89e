//! What all tasks of the daemon share.

use attach::OwnerFiles;

use super::flags::Flags;

#[derive(Debug)]
pub(crate) struct Shared {
    pub flags: Flags,
    pub files: OwnerFiles,
}
