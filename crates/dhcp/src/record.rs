//! The record of an attachment: what a later daemon needs to keep or to release the lease.

use std::path::Path;

use attach::{OwnerFiles, Witness, Writing};
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The sandbox.
    pub witness: Witness,
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
