//! The files of one network: its leases, their index and the cooldowns.

use cni::NetworkName;

use crate::cooldown::Cooldown;
use crate::directory::Directory;
use crate::index::Index;
use crate::scratch::Scratch;
use crate::storage::Storage;

/// The files of one network. A caller that changes them must hold the network's lock.
#[derive(Debug)]
pub(crate) struct Files {
    /// The leases, which are authoritative if the index disagrees with them.
    pub leases: Directory,
    /// The index of the leases. It speeds up the search for leases, and contains the ID of the boot
    /// in which each lease was made.
    pub index: Index,
    /// The times of release, for the cooldown of addresses.
    pub cooldown: Cooldown,
}

impl Files {
    /// Opens the files of `network`, which need not exist yet.
    pub fn open(storage: &Storage, network: &NetworkName) -> Self {
        let beside = storage.index_directory(network);
        let leases = Directory::new(storage.lease_directory(network), Scratch(beside.clone()));
        Self {
            cooldown: storage.cooldown(network),
            index: Index::open(beside, &leases),
            leases,
        }
    }
}
