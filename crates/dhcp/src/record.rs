//! The record of an attachment: what a later daemon needs to keep or to release the lease.

use std::path::Path;

use attach::{OwnerFiles, Witness, Writing};
use ipnetwork::Ipv4Network;
use netlink::SavedRoute;
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
    /// What the interface had with its last lease, if it has lost it.
    pub former: Option<Former>,
    /// The lease that the daemon last requested and that the server may have granted, or one that has
    /// expired. The interface may have its address.
    pub offered: Option<Lease>,
    /// Whether an ADD returned a lease. If not, the next daemon releases what was offered.
    pub is_answered: bool,
}

/// A lease, and the IPv4 routes of the interface, most of which the kernel deletes with the address.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Former {
    pub lease: Lease,
    pub routes: Vec<SavedRoute>,
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

impl Former {
    /// Returns the routes with the addresses of `new` in place of those of the former lease, without
    /// routes that `new` does not have any more.
    pub fn routes_for(&self, new: &Lease) -> Vec<SavedRoute> {
        let addresses = [&self.lease, new].map(Lease::addresses);
        let changed = |it: Ipv4Network| {
            let [old, new] = &addresses;
            let mut pairs = old.iter().zip(new);
            pairs
                .find(|(old, _)| **old == Some(it))
                .and_then(|(_, new)| *new)
                .unwrap_or(it)
        };
        let routes = self
            .routes
            .iter()
            .map(|it| (it, it.with_addresses(changed)));
        let kept = routes.filter(|(old, changed)| !self.lease.has(old) || new.has(changed));
        kept.map(|(_, changed)| changed).collect()
    }
}

impl Record {
    /// Returns the record of an attachment that has no lease yet.
    pub(crate) fn new(asked: Asked) -> Self {
        Self {
            asked,
            seen: None,
            lease: None,
            former: None,
            offered: None,
            is_answered: false,
        }
    }

    /// Returns the record of an attachment that has a lease of another daemon.
    pub(crate) fn foreign(asked: Asked, lease: Lease) -> Self {
        Self {
            lease: Some(lease),
            is_answered: true,
            ..Self::new(asked)
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
