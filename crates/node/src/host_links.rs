//! Links of the host that lead to sandboxes: the kernel's own proof that an attachment lives.
//!
//! The kernel deletes a veth with the namespace of its peer. So the host's end proves that the sandbox exists, without
//! a runtime's cache and without a path of the sandbox. The kernel lists the addresses behind it by the number of the
//! namespace, also for a process that sees no file of that namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::Attachment;
use netlink::{Address, Connection, Link, LinkKind};

/// Host ends of pairs that lead to another namespace or have an owner.
#[derive(Debug, Default)]
pub struct HostLinks(pub Vec<HostLink>);

/// The host's end of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLink {
    /// The name.
    pub name: String,
    /// Index of its bridge.
    pub master: Option<u32>,
    /// The tag of the attachment, if this suite created the link.
    pub owner: Option<String>,
    /// Addresses in the sandbox, without those of `lo` and link-local ones; `None` if the kernel does not list them.
    pub addresses: Option<BTreeSet<IpAddr>>,
}

impl HostLinks {
    /// Reads the host ends among `links`, with the addresses behind them.
    pub fn read(connection: &Connection, links: &[Link]) -> Self {
        let pairs = links.iter().filter(|it| it.kind == LinkKind::Veth);
        let links = pairs.filter_map(|link| {
            let owner = link.alias.clone().filter(|it| Attachment::is_owner(it));
            let addresses = if owner.is_some() {
                // The tag identifies the attachment, so no address is needed.
                Some(BTreeSet::new())
            } else {
                match connection.addresses_in(link.peer_namespace?) {
                    // The kernel is deleting the namespace, and the link with it.
                    Err(error) if error.is_no_namespace() => return None,
                    addresses => addresses.ok().map(outward),
                }
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

    /// Returns a link whose owner satisfies `is_owner`.
    pub fn of_owner(&self, is_owner: impl Fn(&str) -> bool) -> Option<&HostLink> {
        let mut links = self.0.iter();
        links.find(|it| it.owner.as_deref().is_some_and(&is_owner))
    }

    /// Returns the link without owner that has this address behind it.
    pub fn of_address(&self, address: IpAddr) -> Option<&HostLink> {
        let has = |it: &HostLink| it.addresses.iter().flatten().any(|it| *it == address);
        self.untagged().find(|it| has(it))
    }

    /// Returns the owners of all links that have one.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|it| it.owner.as_deref())
    }

    /// Returns the addresses behind links without owner.
    pub fn untagged_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let links = self.untagged();
        links.filter_map(|it| it.addresses.clone()).flatten()
    }

    /// Returns a link whose sandbox the kernel does not show to this process.
    pub fn hidden(&self) -> Option<&HostLink> {
        self.0.iter().find(|it| it.addresses.is_none())
    }

    /// Returns links without owner and without visible address: the sandbox can belong to any attachment.
    pub fn unexplained(&self) -> impl Iterator<Item = &HostLink> {
        let links = self.untagged();
        links.filter(|it| it.addresses.as_ref().is_none_or(BTreeSet::is_empty))
    }

    fn untagged(&self) -> impl Iterator<Item = &HostLink> {
        self.0.iter().filter(|it| it.owner.is_none())
    }
}

fn outward(addresses: Vec<Address>) -> BTreeSet<IpAddr> {
    let addresses = addresses.into_iter().filter(|it| !it.is_link_local);
    let addresses = addresses.map(|it| it.address.ip());
    addresses.filter(|it| !it.is_loopback()).collect()
}
