//! The files of one network: its leases, their index and the cooldowns.

use cni::NetworkName;

use crate::Storage;
use crate::cooldown::Cooldown;
use crate::directory::Directory;
use crate::index::Index;
use crate::scratch::Scratch;

/// The files of one network. A caller that changes them must hold the network's lock.
#[derive(Debug)]
pub(crate) struct Files {
    /// The network.
    pub network: NetworkName,
    /// The leases, which are authoritative if the index disagrees with them.
    pub leases: Directory,
    /// The index of the leases. It speeds up the search for leases, and shows which leases are from
    /// an earlier boot.
    pub index: Index,
    /// The times at which addresses were released. Until `reuseDelay` has passed since then, an
    /// address is leased on request only.
    pub cooldown: Cooldown,
}

impl Files {
    /// Opens the files of `network`, which need not exist yet.
    pub fn open(storage: &Storage, network: &NetworkName) -> Self {
        let beside = storage.index_directory(network);
        let leases = Directory::new(storage.lease_directory(network), Scratch(beside.clone()));
        Self {
            network: network.clone(),
            cooldown: storage.cooldown(network),
            index: Index::open(beside, &leases),
            leases,
        }
    }
}
