//! Host ends of veth pairs whose peers are in sandboxes.
//!
//! The kernel deletes a veth together with the namespace of its peer. So a host end proves that the
//! sandbox exists. To see this, a process needs neither a runtime's cache nor the path of the
//! sandbox's namespace. With the number (nsid) of this namespace, the process can also ask the
//! kernel for the addresses in the sandbox.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::{Address, Connection, Link, LinkKind};

use crate::traces::owner_of;

/// Host ends of veth pairs: veths whose peer is in another namespace, or whose alias is the tag of
/// an attachment.
#[derive(Debug, Default)]
pub struct HostLinks(pub Vec<HostLink>);

/// The host's end of a veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLink {
    /// The link.
    pub link: Link,
    /// The attachment's tag, which this suite writes into the link's alias; `None` if the alias is
    /// not a tag.
    pub owner: Option<String>,
    /// Addresses in the sandbox, without those of `lo` and link-local ones; `None` if the kernel
    /// does not list them.
    pub addresses: Option<BTreeSet<IpAddr>>,
}

impl HostLinks {
    /// Selects the host ends from `links`, and reads the addresses in the namespaces of their
    /// peers. A veth whose peer is in this namespace counts only if its alias is a tag. `links` are
    /// those of the calling thread's namespace.
    pub fn read(links: &[Link]) -> Self {
        let pairs = links.iter().filter(|it| it.kind == LinkKind::Veth);
        let links = pairs.filter_map(|link| {
            let owner = owner_of(link).map(str::to_owned);
            // Another connection for each sandbox, so that none can disturb the list of the next.
            let list = |number| Connection::open_wary()?.addresses_in(number);
            let listed = link.peer_namespace.map(list);
            let addresses = match listed {
                Some(Ok(addresses)) => Some(outward(addresses)),
                Some(Err(error)) if !error.is_no_namespace() => None,
                // The peer is in this namespace, or the kernel is deleting the peer's namespace. So
                // there are no addresses, and only the tag shows that the link is a host end.
                _ if owner.is_some() => Some(BTreeSet::new()),
                _ => return None,
            };
            Some(HostLink {
                link: link.clone(),
                owner,
                addresses,
            })
        });
        Self(links.collect())
    }

    /// Returns a host link whose tag satisfies `is_owner`; `None` if there is none.
    pub fn of_owner(&self, is_owner: impl Fn(&str) -> bool) -> Option<&HostLink> {
        let mut links = self.0.iter();
        links.find(|it| it.owner.as_deref().is_some_and(&is_owner))
    }

    /// Returns the host link that has no tag and whose sandbox has this address; `None` if there is
    /// no such link.
    pub fn of_address(&self, address: IpAddr) -> Option<&HostLink> {
        let mut links = self.untagged();
        links.find(|link| link.known_addresses().any(|it| it == address))
    }

    /// Returns a host link for which the kernel does not list the addresses in the sandbox; `None`
    /// if there is no such link.
    pub fn hidden(&self) -> Option<&HostLink> {
        self.0.iter().find(|it| it.addresses.is_none())
    }

    /// Returns the host links without a tag whose sandboxes have none of the addresses that
    /// `is_known` accepts, or whose addresses the kernel does not list. Such a link can belong to any
    /// attachment.
    pub fn unexplained(
        &self,
        is_known: impl Fn(IpAddr) -> bool,
    ) -> impl Iterator<Item = &HostLink> {
        self.untagged()
            .filter(move |link| !link.known_addresses().any(&is_known))
    }

    /// Returns the host links without a tag.
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
