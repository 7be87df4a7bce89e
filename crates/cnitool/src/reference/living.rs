//! Finds out which attachments are live, from the host's links, the runtime's cache and
//! host-local's leases.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};
use cni::Attachment;
use node::{HostLink, Node, Part};
use runtime::Directories;

use super::mark::Mark;

/// The live attachments.
#[derive(Debug, Default)]
pub struct Living {
    attachments: Vec<Attachment>,
    /// Addresses of live sandboxes without a lease or tag.
    addresses: BTreeSet<IpAddr>,
}

impl Living {
    /// Reads the live attachments. An attachment is live if a link of the host leads to it, if its
    /// result is cached and its sandbox exists or, without a cached result, if it has a lease.
    ///
    /// # Errors
    /// One of them cannot be read, a file there does not name its owner, or a sandbox cannot be
    /// entered.
    pub fn read(directories: &Directories) -> anyhow::Result<Self> {
        for entry in directories.cache.entries()? {
            entry.context("find live attachments")?;
        }
        let node = Node::attachments(directories);
        for (part, reason) in &node.unread {
            ensure!(*part == Part::Firewall, "find live attachments: {reason}");
        }
        for lease in node.leases.iter().filter(|it| it.holder.is_none()) {
            let is_empty = lease.path.metadata().is_ok_and(|it| it.len() == 0);
            let path = lease.path.display();
            ensure!(is_empty, "find the holder of lease {path}");
        }
        if let Some(HostLink { name, .. }) = node.host_links.hidden() {
            bail!("find live attachments: no address behind {name} can be read");
        }
        Ok(Self::of(&node))
    }

    /// Derives the live attachments from what was read of a node.
    pub fn of(node: &Node) -> Self {
        let mut living = Self::default();
        let cached = node.attached.iter().map(|it| &it.attachment);
        let cached = cached.map(|it| (it.network.as_str(), &it.container));
        let cached: BTreeSet<_> = cached.collect();
        let alive = node.alive().map(|it| it.attachment.clone());
        living.attachments.extend(alive);
        let links = &node.host_links;
        living.addresses.extend(links.untagged_addresses());
        let mut named = BTreeSet::new();
        let held = node.leases.iter();
        for (lease, holder) in held.filter_map(|it| Some((it, it.attachment()?))) {
            let is_cached = cached.contains(&(&*lease.network, &holder.container));
            if !is_cached || living.addresses.contains(&lease.address) {
                living.attachments.push(holder);
            }
            named.insert(lease.address);
        }
        living.addresses.retain(|it| !named.contains(it));
        let tagged = links.owners().filter_map(Attachment::of_owner);
        living.attachments.extend(tagged);
        living
    }

    /// Returns whether the mark is of a live attachment.
    pub fn has(&self, mark: &Mark) -> bool {
        self.attachments.iter().any(|it| mark.is_of(it))
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
}
