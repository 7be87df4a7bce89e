//! Host ends of veth pairs whose peers are in sandboxes: the kernel's own proof that an attachment
//! is live.
//!
//! The kernel deletes a veth together with the namespace of its peer. So a host end proves that the
//! sandbox exists, even without a runtime's cache or the sandbox's path. A process that knows the
//! number (nsid) of the sandbox's namespace can ask the kernel for the addresses there, even if it
//! sees no file of that namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::Attachment;
use netlink::{Address, Connection, Link, LinkKind};

/// Host ends of veth pairs whose peer is in another namespace, or that are tagged with an owner.
#[derive(Debug, Default)]
pub struct HostLinks(pub Vec<HostLink>);

/// The host's end of a veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLink {
    /// The name.
    pub name: String,
    /// Interface index of the bridge that the link is a port of.
    pub master: Option<u32>,
    /// The tag of the attachment, if this suite created the link.
    pub owner: Option<String>,
    /// Addresses in the sandbox, without those of `lo` and link-local ones; `None` if the kernel
    /// does not list them.
    pub addresses: Option<BTreeSet<IpAddr>>,
}

impl HostLinks {
    /// Selects from `links` the host ends of veth pairs whose peer is in another namespace, or that
    /// are tagged with an owner. Reads the addresses in the namespaces of their peers.
    pub fn read(connection: &Connection, links: &[Link]) -> Self {
        let pairs = links.iter().filter(|it| it.kind == LinkKind::Veth);
        let links = pairs.filter_map(|link| {
            let owner = link.alias.clone().filter(|it| Attachment::is_owner(it));
            let listed = link.peer_namespace.map(|it| connection.addresses_in(it));
            let addresses = match listed {
                Some(Ok(addresses)) => Some(outward(addresses)),
                Some(Err(error)) if !error.is_no_namespace() => None,
                // The peer is in this namespace, or the kernel is deleting the peer's namespace.
                // Only a link with an owner counts then, without addresses.
                _ if owner.is_some() => Some(BTreeSet::new()),
                _ => return None,
            };
            Some(HostLink {
                name: link.name.clone(),
                master: link.master,
                owner,
                addresses,
            })
        });
        Self(links.collect())
    }

    /// Returns a host link whose owner satisfies `is_owner`.
    pub fn of_owner(&self, is_owner: impl Fn(&str) -> bool) -> Option<&HostLink> {
        let mut links = self.0.iter();
        links.find(|it| it.owner.as_deref().is_some_and(&is_owner))
    }

    /// Returns the host link that has no owner and whose sandbox has this address.
    pub fn of_address(&self, address: IpAddr) -> Option<&HostLink> {
        let mut links = self.untagged();
        links.find(|it| it.known_addresses().any(|it| it == address))
    }

    /// Returns the owners of all links that have one.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|it| it.owner.as_deref())
    }

    /// Returns a host link with a sandbox whose addresses the kernel does not list; `None` if there
    /// is no such link.
    pub fn hidden(&self) -> Option<&HostLink> {
        self.0.iter().find(|it| it.addresses.is_none())
    }

    /// Returns the host links without owner whose sandboxes have no known address. Such a sandbox
    /// can belong to any attachment.
    pub fn unexplained(&self) -> impl Iterator<Item = &HostLink> {
        let links = self.untagged();
        links.filter(|it| it.addresses.as_ref().is_none_or(BTreeSet::is_empty))
    }

    /// Returns the host links without owner.
    pub fn untagged(&self) -> impl Iterator<Item = &HostLink> {
        self.0.iter().filter(|it| it.owner.is_none())
    }
}

impl HostLink {
    /// Returns the addresses in the sandbox; none if the kernel does not list them.
    pub fn known_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().flatten().copied()
    }
}

fn outward(addresses: Vec<Address>) -> BTreeSet<IpAddr> {
    let addresses = addresses.into_iter().filter(|it| !it.is_link_local);
    let addresses = addresses.map(|it| it.address.ip());
    addresses.filter(|it| !it.is_loopback()).collect()
}
