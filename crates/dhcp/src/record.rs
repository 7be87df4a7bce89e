//! The record of an attachment: what a later daemon needs to keep or to release the lease.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use attach::{OwnerFiles, Writing};
use cni::files::{boot_id, identity};
use serde::{Deserialize, Serialize};

use crate::lease::Lease;
use crate::wire::Asked;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The attachment and what it asked for.
    pub asked: Asked,
    /// Where the interface was seen last; `None` before the first time.
    pub seen: Option<Seen>,
    /// The lease that the interface has.
    pub lease: Option<Lease>,
    /// The lease that the daemon last requested, and that the server may have granted.
    pub offered: Option<Lease>,
    /// Whether an ADD returned a lease. If not, the next daemon releases what was offered.
    pub is_answered: bool,
}

/// Where the daemon saw an interface. Proves later that its sandbox is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The boot of the host.
    pub boot: String,
    /// The daemon's mount namespace: in another one, a path means something else.
    pub mounts: Option<(u64, u64)>,
    /// Device and inode of the sandbox.
    pub sandbox: Option<(u64, u64)>,
    /// Index of the interface.
    pub index: u32,
    /// MAC of the interface.
    pub mac: [u8; 6],
}

impl Record {
    /// Returns the record of an attachment that has no lease yet.
    pub(crate) fn new(asked: Asked) -> Self {
        Self {
            asked,
            seen: None,
            lease: None,
            offered: None,
            is_answered: false,
        }
    }

    /// Writes the record.
    pub(crate) fn write(&self, files: &OwnerFiles) -> anyhow::Result<()> {
        let owner = self.asked.attachment.owner();
        files.write(&owner, &serde_json::to_string(self)?, Writing::All)
    }
}

/// Returns the directory of the records of the daemon with this socket. It is beside the socket, so
/// that a process which sees one of them sees both.
pub(crate) fn directory(socket: &Path) -> OwnerFiles {
    OwnerFiles(socket.with_extension("leases"))
}

/// This boot of the host; empty if `/proc` does not show it.
pub(crate) static BOOT: LazyLock<String> = LazyLock::new(|| boot_id().unwrap_or_default());

/// Device and inode of the daemon's mount namespace.
pub(crate) static MOUNTS: LazyLock<Option<(u64, u64)>> =
    LazyLock::new(|| identity(fs::metadata(PathBuf::from("/proc/self/ns/mnt"))));
