//! Finds out which attachments are live, from the host's links, the runtime's cache and
//! host-local's leases.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};
use cni::Attachment;
use netlink::Connection;
use node::{Configuration, HostLinks, Lease};
use runtime::{Cache, Directories, may_exist};
use sha2::{Digest as _, Sha512};

use super::mark::Mark;

/// The live attachments.
#[derive(Debug, Default)]
pub struct Living {
    chains: Vec<String>,
    containers: BTreeSet<String>,
    instances: BTreeSet<String>,
    /// Addresses of live sandboxes without a lease or tag.
    addresses: BTreeSet<IpAddr>,
}

impl Living {
    /// Reads the live attachments. An attachment is live if a link of the host leads to it, if its
    /// result is cached and its sandbox exists or, without a cached result, if it has a lease.
    /// Leases are read from `networks` beside the cache, host-local's default, and from the
    /// directories of configured networks.
    ///
    /// # Errors
    /// One of them cannot be read, a file there does not name its owner, or a sandbox cannot be
    /// entered.
    pub fn read(directories: &Directories) -> anyhow::Result<Self> {
        let mut attached = Vec::new();
        for entry in Cache::new(&directories.cache).entries()? {
            let (attachment, entry) = entry.context("find live attachments")?;
            attached.push((attachment, may_exist(entry.netns())));
        }
        let mut data_directories = node::data_directories(&Configuration::read(directories)?);
        data_directories.insert(directories.cache.join("networks"));
        let leases = node::leases(&data_directories)?;
        for lease in leases.iter().filter(|it| it.holder.is_none()) {
            let is_empty = lease.path.metadata().is_ok_and(|it| it.len() == 0);
            ensure!(
                is_empty,
                "find the holder of lease {}",
                lease.path.display()
            );
        }
        let host = Connection::open()?;
        let links = HostLinks::read(&host, &host.links()?);
        if let Some(link) = links.hidden() {
            bail!(
                "find live attachments: no address behind {} can be read",
                link.name
            );
        }
        let attached = attached.iter().map(|(it, is_alive)| (it, *is_alive));
        Ok(Self::of(attached, &leases, &links))
    }

    /// Derives the live attachments, from cached ones with whether their sandboxes exist, from
    /// leases and links.
    pub fn of<'a>(
        attached: impl IntoIterator<Item = (&'a Attachment, bool)>,
        leases: &[Lease],
        links: &HostLinks,
    ) -> Self {
        let (mut living, mut cached) = (Self::default(), BTreeSet::new());
        for (attachment, is_alive) in attached {
            if is_alive {
                living.insert(attachment);
            }
            cached.insert((attachment.network.as_str(), &attachment.container));
        }
        living.addresses.extend(links.untagged_addresses());
        let mut named = BTreeSet::new();
        for lease in leases {
            let Some(holder) = lease.attachment() else {
                continue;
            };
            let is_cached = cached.contains(&(&*lease.network, &holder.container));
            if !is_cached || living.addresses.contains(&lease.address) {
                living.insert(&holder);
            }
            named.insert(lease.address);
        }
        living.addresses.retain(|it| !named.contains(it));
        for attachment in links.owners().filter_map(Attachment::of_owner) {
            living.insert(&attachment);
        }
        living
    }

    /// Returns whether the mark is of a live attachment.
    pub fn has(&self, mark: &Mark) -> bool {
        match mark {
            Mark::Chain(digits) => self.chains.iter().any(|it| it.starts_with(digits)),
            Mark::Container(id) => self.containers.contains(id),
            Mark::Instance(digits) => self.instances.contains(digits),
        }
    }

    /// Returns whether one of the addresses is in a live sandbox without a name.
    pub fn is_at(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        !self.addresses.is_disjoint(addresses)
    }

    /// Returns whether such sandboxes exist. Then a mark alone does not prove that its attachment
    /// is stale.
    pub fn has_unnamed(&self) -> bool {
        !self.addresses.is_empty()
    }

    fn insert(&mut self, attachment: &Attachment) {
        let Attachment {
            network,
            container,
            interface,
        } = attachment;
        self.chains.push(digest(&format!("{network}{container}")));
        self.containers.insert(container.to_string());
        let instance = digest(&format!("{interface}:{container}"));
        let parts = [digest(network.as_str()), instance];
        let parts = parts.map(|it| it.chars().take(16).collect::<String>());
        self.instances.insert(parts.join("-"));
    }
}

fn digest(text: &str) -> String {
    let digest = Sha512::digest(text);
    let bytes = digest.iter();
    bytes.fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf podsa | sha512sum`, from which Debian's reference derived the expected names.
    #[test]
    fn marks_are_those_of_the_reference() {
        let mut living = Living::default();
        living.insert(&Attachment::of_owner("cni:pods/a/eth0").unwrap());
        assert!(living.has(&Mark::Chain("64e2b30124778559e7bbb4eb".into())));
        assert!(living.has(&Mark::Chain("64e2b30124778559e7bbb".into())));
        assert!(!living.has(&Mark::Chain("64e2b30124778559e7bbb4ec".into())));
        assert!(living.has(&Mark::Container("a".into())));
        assert!(!living.has(&Mark::Container("b".into())));
    }
}
