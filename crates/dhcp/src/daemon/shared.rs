//! What all tasks of the daemon share.

use attach::OwnerFiles;

use super::flags::Flags;

/// The daemon's flags, and the records of attachments.
#[derive(Debug)]
pub(crate) struct Shared {
    pub flags: Flags,
    pub files: OwnerFiles,
}
