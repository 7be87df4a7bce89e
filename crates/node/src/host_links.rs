//! Links of the host that lead to sandboxes: the kernel's own proof that an attachment lives.
//!
//! A veth ends with the namespace of its peer, so the host's end is a witness that needs neither a runtime's cache
//! nor a path of the sandbox. The kernel lists the addresses behind it by the number of the namespace, also for a
//! process that sees no file of that namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::Attachment;
use netlink::{Address, Connection, Link, LinkKind};

/// The host's ends of all pairs that lead elsewhere, or have an owner.
#[derive(Debug, Default)]
pub struct HostLinks {
    links: Vec<HostLink>,
}

/// The host's end of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLink {
    /// Its name.
    pub name: String,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// The tag of its attachment, where this suite made it.
    pub owner: Option<String>,
    /// Addresses in the sandbox, without those of `lo` and link-local ones; `None`: the kernel does not list them.
    pub addresses: Option<BTreeSet<IpAddr>>,
}

impl HostLinks {
    /// Those among `links`, with the addresses behind them.
    pub fn read(connection: &Connection, links: &[Link]) -> Self {
        let mut behind = BTreeMap::new();
        let mut addresses_in = |namespace| {
            let read = || addresses_in(connection, namespace);
            behind.entry(namespace).or_insert_with(read).clone()
        };
        let pairs = links.iter().filter(|it| it.kind == LinkKind::Veth);
        let links = pairs.filter_map(|link| {
            let owner = link.alias.clone().filter(|it| Attachment::is_owner(it));
            let addresses = match link.peer_namespace {
                // The tag says enough.
                _ if owner.is_some() => Some(BTreeSet::new()),
                Some(namespace) => match addresses_in(namespace) {
                    Behind::Addresses(addresses) => Some(addresses),
                    Behind::Hidden => None,
                    Behind::Ended => return None,
                },
                None => return None,
            };
            Some(HostLink {
                name: link.name.clone(),
                master: link.master,
                owner,
                addresses,
            })
        });
        Self {
            links: links.collect(),
        }
    }

    /// The link whose owner is `is_owner`.
    pub fn of_owner(&self, is_owner: impl Fn(&str) -> bool) -> Option<&HostLink> {
        let mut links = self.links.iter();
        links.find(|it| it.owner.as_deref().is_some_and(&is_owner))
    }

    /// The link without owner behind which this address is.
    pub fn of_address(&self, address: IpAddr) -> Option<&HostLink> {
        let has = |it: &&HostLink| {
            let addresses = it.addresses.as_ref();
            it.owner.is_none() && addresses.is_some_and(|all| all.contains(&address))
        };
        self.links.iter().find(has)
    }

    /// The owners of all links that have one.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.links.iter().filter_map(|it| it.owner.as_deref())
    }

    /// The addresses behind links without owner.
    pub fn untagged_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let links = self.links.iter().filter(|it| it.owner.is_none());
        links.filter_map(|it| it.addresses.clone()).flatten()
    }

    /// A link into whose sandbox this process may not look.
    pub fn hidden(&self) -> Option<&HostLink> {
        self.links.iter().find(|it| it.addresses.is_none())
    }

    /// Links without owner behind which no address is seen: the sandbox of one of them may be anybody's.
    pub fn unexplained(&self) -> impl Iterator<Item = &HostLink> {
        let links = self.links.iter().filter(|it| it.owner.is_none());
        links.filter(|it| it.addresses.as_ref().is_none_or(BTreeSet::is_empty))
    }
}

impl FromIterator<HostLink> for HostLinks {
    fn from_iter<T: IntoIterator<Item = HostLink>>(links: T) -> Self {
        Self {
            links: links.into_iter().collect(),
        }
    }
}

/// What the kernel shows of a namespace.
#[derive(Debug, Clone)]
enum Behind {
    Addresses(BTreeSet<IpAddr>),
    /// This process may not look into it.
    Hidden,
    /// It ends at this moment, and with it the link.
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
