//! Links of the host that lead to sandboxes: the kernel's own proof that an attachment lives.
//!
//! The kernel deletes a veth with the namespace of its peer. So the host's end proves that the sandbox exists, without
//! a runtime's cache and without a path of the sandbox. The kernel lists the addresses behind it by the number of the
//! namespace, also for a process that sees no file of that namespace.

use std::collections::{BTreeMap, BTreeSet};
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
        let mut known = BTreeMap::new();
        let mut behind = |namespace| {
            let read = || addresses_in(connection, namespace);
            known.entry(namespace).or_insert_with(read).clone()
        };
        let pairs = links.iter().filter(|it| it.kind == LinkKind::Veth);
        let links = pairs.filter_map(|link| {
            let owner = link.alias.clone().filter(|it| Attachment::is_owner(it));
            let addresses = match &owner {
                // The tag identifies the attachment, so no address is needed.
                Some(_) => Some(BTreeSet::new()),
                None => match behind(link.peer_namespace?) {
                    Behind::Addresses(addresses) => Some(addresses),
                    Behind::Hidden => None,
                    Behind::Ended => return None,
                },
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

/// The kernel's answer for a namespace.
#[derive(Debug, Clone)]
enum Behind {
    Addresses(BTreeSet<IpAddr>),
    /// The kernel does not show it to this process.
    Hidden,
    /// The kernel is deleting it, and the link with it.
    Ended,
}

fn addresses_in(connection: &Connection, namespace: i32) -> Behind {
    let addresses = match connection.addresses_in(namespace) {
        Err(error) if error.is_no_namespace() => return Behind::Ended,
        Err(_) => return Behind::Hidden,
        Ok(addresses) => addresses,
    };
    let is_outward = |it: &&Address| !it.is_link_local && !it.address.ip().is_loopback();
    let outward = addresses.iter().filter(is_outward);
    Behind::Addresses(outward.map(|it| it.address.ip()).collect())
}
