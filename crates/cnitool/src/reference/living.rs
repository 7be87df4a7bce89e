//! Finds out which attachments are live, from the host's links, the runtime's cache and
//! host-local's leases.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};
use cni::Attachment;
use node::{HostLink, Node, Part};
use runtime::Directories;

use super::mark::Mark;

/// The live attachments: `migrate` and doctor look up here whether rules of the Go plugins are
/// stale.
#[derive(Debug, Default)]
pub struct Living {
    attachments: Vec<Attachment>,
    /// Addresses in live sandboxes whose attachment is not known: the host's end of the veth pair
    /// has no tag, and no lease of the address names an attachment.
    addresses: BTreeSet<IpAddr>,
    /// Addresses of all live attachments, including those in `addresses`.
    held: BTreeSet<IpAddr>,
    /// Names of the bridges with a port that this suite did not make.
    bridges: BTreeSet<String>,
}

impl Living {
    /// Reads the live attachments. An attachment is live if one of these is true:
    /// - The host's end of its veth pair exists.
    /// - Its result is cached, and its sandbox exists or this process cannot find out.
    /// - No result is cached, and it has a lease.
    ///
    /// # Errors
    /// - A part of the node other than the firewall cannot be read: the configuration, leases, the
    ///   cache or links.
    /// - A file in the cache, or a lease file that is not empty, does not name its attachment.
    /// - The addresses in a sandbox cannot be listed.
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

    /// Derives the live attachments from a node that was read before.
    pub fn of(node: &Node) -> Self {
        let mut living = Self::default();
        let cached = node.attached.iter().map(|it| &it.attachment);
        let cached = cached.map(|it| (it.network.as_str(), &it.container));
        let cached: BTreeSet<_> = cached.collect();
        for alive in node.alive() {
            living.attachments.push(alive.attachment.clone());
            let addresses = alive.addresses().into_iter();
            living.held.extend(addresses.map(|it| it.ip()));
        }
        let links = &node.host_links;
        let held = links.0.iter().flat_map(HostLink::known_addresses);
        living.held.extend(held);
        let bridges = links.untagged().filter_map(|it| it.master);
        living.bridges = bridges.map(|it| node.link_name(it).to_owned()).collect();
        let unnamed = links.untagged().flat_map(HostLink::known_addresses);
        living.addresses.extend(unnamed);
        let mut named = BTreeSet::new();
        let held = node.leases.iter();
        for (lease, holder) in held.filter_map(|it| Some((it, it.attachment()?))) {
            let is_cached = cached.contains(&(&*lease.network, &holder.container));
            if !is_cached || living.addresses.contains(&lease.address) {
                living.attachments.push(holder);
                living.held.insert(lease.address);
            }
            named.insert(lease.address);
        }
        living.addresses.retain(|it| !named.contains(it));
        let tagged = links.owners().filter_map(Attachment::of_owner);
        living.attachments.extend(tagged);
        living
    }

    /// Returns whether a chain or rule with this mark belongs to a live attachment.
    pub fn has(&self, mark: &Mark) -> bool {
        match mark {
            Mark::Address(address) => self.held.contains(address),
            mark => self.attachments.iter().any(|it| mark.is_of(it)),
        }
    }

    /// Returns whether the bridge has a port that this suite did not make. A Go plugin may have
    /// made the port, so `migrate` keeps the Go plugins' rules for the bridge.
    pub fn is_on(&self, bridge: &str) -> bool {
        self.bridges.contains(bridge)
    }

    /// Returns whether one of the addresses is in a live sandbox whose attachment is not known.
    pub fn is_at(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        !self.addresses.is_disjoint(addresses)
    }

    /// Returns whether there are live sandboxes whose attachment is not known. If so, a chain or
    /// rule that matches no known live attachment may still belong to such a sandbox, so it is not
    /// proven to be stale.
    pub fn has_unnamed(&self) -> bool {
        !self.addresses.is_empty()
    }
}
