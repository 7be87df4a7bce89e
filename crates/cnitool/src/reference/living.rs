//! Which attachments live, as the host's links, a runtime's cache and the leases of host-local show.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};
use cni::Attachment;
use netlink::Connection;
use node::{Configuration, HostLinks, Lease};
use runtime::{Cache, Directories, may_exist};
use sha2::{Digest as _, Sha512};

use super::Mark;

/// Whatever must stay.
#[derive(Debug, Default)]
pub struct Living {
    chains: Vec<String>,
    containers: BTreeSet<String>,
    instances: BTreeSet<String>,
    /// Addresses of sandboxes that neither a lease nor a tag names.
    addresses: BTreeSet<IpAddr>,
}

impl Living {
    /// An attachment lives if a link of the host leads to it. It also lives if its result is cached and its sandbox
    /// exists, or if nothing is cached of it and it has a lease: in `networks` beside the cache, where host-local
    /// keeps leases by default, or where a network has it keep them.
    ///
    /// # Errors
    /// One of them cannot be read, or a file there does not tell whose it is, or a sandbox cannot be looked into.
    pub fn read(directories: &Directories) -> anyhow::Result<Self> {
        let mut attached = Vec::new();
        for entry in Cache::new(&directories.cache).entries()? {
            let (attachment, entry) = entry.context("tell what lives")?;
            attached.push((attachment, may_exist(entry.netns())));
        }
        let mut data_directories = node::data_directories(&Configuration::read(directories)?);
        data_directories.insert(directories.cache.join("networks"));
        let leases = node::leases(&data_directories)?;
        for lease in leases.iter().filter(|it| it.holder.is_none()) {
            let is_empty = lease.path.metadata().is_ok_and(|it| it.len() == 0);
            ensure!(is_empty, "tell whose lease {} is", lease.path.display());
        }
        let host = Connection::open()?;
        let links = HostLinks::read(&host, &host.links()?);
        if let Some(link) = links.hidden() {
            bail!(
                "tell what lives: no address behind {} can be read",
                link.name
            );
        }
        let attached = attached.iter().map(|(it, is_alive)| (it, *is_alive));
        Ok(Self::of(attached, &leases, &links))
    }

    /// As [`Self::read`] has it, of cached attachments, with whether their sandboxes exist, of leases and links.
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

    /// The remnant that bears this mark is of one of them.
    pub fn has(&self, mark: &Mark) -> bool {
        match mark {
            Mark::Chain(digits) => self.chains.iter().any(|it| it.starts_with(digits)),
            Mark::Container(id) => self.containers.contains(id),
            Mark::Instance(digits) => self.instances.contains(digits),
        }
    }

    /// One of these addresses is in a sandbox that has no name otherwise.
    pub fn is_at(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        !self.addresses.is_disjoint(addresses)
    }

    /// There are such sandboxes, and a mark alone does not show that its attachment is gone.
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

    /// `printf podsa | sha512sum`, of which Debian's reference took what is asked for here.
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
