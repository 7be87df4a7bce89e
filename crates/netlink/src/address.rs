//! Reads, adds and deletes IP addresses of links.

use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use nix::libc::{RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR};

use crate::{Connection, Error, IpVersion, Message, Request};

/// An address that a link has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Index of the link.
    pub link: u32,
    /// The address with its prefix length.
    pub address: IpNetwork,
    /// Duplicate address detection has not ended; the kernel does not send from the address yet.
    pub is_tentative: bool,
    /// Duplicate address detection failed: another host on the link has the address.
    pub is_duplicate: bool,
    /// The address is an IPv6 address that is valid on this link only.
    pub is_link_local: bool,
    /// The address has a limited lifetime, as addresses from router advertisements and from DHCP
    /// have: the kernel deletes it unless its lifetime is extended.
    pub expires: bool,
}

/// Whether the kernel performs duplicate address detection for a new IPv6 address (RFC 4862). IPv4
/// has none, so the value has no effect there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dad {
    /// The address is tentative for one to two seconds: the kernel does not send from it yet.
    #[default]
    Perform,
    /// The address works at once.
    Skip,
}

impl Connection {
    /// Returns the addresses of the link with this index. Equivalent to `ip address show dev`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn addresses(&self, link: u32) -> Result<Vec<Address>, Error> {
        self.addresses_of(link, AddressFamily::Unspec)
    }

    /// Returns the addresses of all links. Equivalent to `ip address show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn every_address(&self) -> Result<Vec<Address>, Error> {
        self.addresses_like(&AddressMessage::default())
    }

    /// Returns the IPv6 addresses of the link with this index. Kernels from 6.10 on answer without
    /// waiting for the RTNL lock. Equivalent to `ip -6 address show dev`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ipv6_addresses(&self, link: u32) -> Result<Vec<Address>, Error> {
        self.addresses_of(link, AddressFamily::Inet6)
    }

    /// Returns the addresses of all links of another namespace. `number` is the number (nsid) that
    /// the connection's namespace uses for the other namespace, as in
    /// [`crate::Link::peer_namespace`]. Equivalent to `ip address show target-nsid`.
    ///
    /// The call needs `CAP_NET_ADMIN` in the other namespace, but no path to that namespace.
    ///
    /// # Errors
    /// [`Error::Refused`]: the namespace does not exist or this process lacks the capability in it.
    pub fn addresses_in(&self, number: i32) -> Result<Vec<Address>, Error> {
        let mut message = AddressMessage::default();
        message.attributes = vec![AddressAttribute::TargetNetNsId(number)];
        self.addresses_like(&message)
    }

    fn addresses_of(&self, link: u32, family: AddressFamily) -> Result<Vec<Address>, Error> {
        let mut message = AddressMessage::default();
        message.header.index = link;
        message.header.family = family;
        let mut addresses = self.addresses_like(&message)?;
        addresses.retain(|address| address.link == link);
        Ok(addresses)
    }

    fn addresses_like(&self, message: &AddressMessage) -> Result<Vec<Address>, Error> {
        let request = Request::list("read addresses", RTM_GETADDR, message);
        self.objects(&[request], Address::from_answer)
    }
}

impl Request {
    /// Returns a request that adds `address` to the link with this index. The kernel refuses an
    /// address that the link already has. Equivalent to `ip address add`.
    pub fn add_address(link: u32, address: IpNetwork, dad: Dad) -> Self {
        let operation = format!("add address {address}");
        Self::create(operation, RTM_NEWADDR, &addition(link, address, dad))
    }

    /// Returns a request that adds `address` as [`Self::add_address`] does, but without a route to
    /// the network of the address. Equivalent to `ip address add … noprefixroute`.
    pub fn add_address_without_route(link: u32, address: IpNetwork, dad: Dad) -> Self {
        let mut addition = addition(link, address, dad);
        // If the message has the attribute for flags (`IFA_FLAGS`), the kernel ignores the flags in
        // the message's header. So the attribute repeats the flags of the header.
        let nodad = AddressFlags::from_bits_retain(addition.header.flags.bits().into());
        let flags = AddressAttribute::Flags(nodad | AddressFlags::Noprefixroute);
        addition.attributes.push(flags);
        let operation = format!("add address {address} without a route");
        Self::create(operation, RTM_NEWADDR, &addition)
    }

    /// Returns a request that adds `address` as [`Self::add_address`] does. The kernel's route to the
    /// network of the address has this metric. The kernel adds this route again when the link comes
    /// up. Equivalent to `ip address add … metric`.
    pub fn add_address_with_metric(link: u32, address: IpNetwork, dad: Dad, metric: u32) -> Self {
        let mut addition = addition(link, address, dad);
        let metric = AddressAttribute::RoutePriority(metric);
        addition.attributes.push(metric);
        let operation = format!("add address {address}");
        Self::create(operation, RTM_NEWADDR, &addition)
    }

    /// Returns a request that deletes `address` from the link with this index. Equivalent to `ip
    /// address delete`.
    pub fn delete_address(link: u32, address: IpNetwork) -> Self {
        let operation = format!("delete address {address}");
        Self::change(operation, RTM_DELADDR, &message(link, address))
    }
}

impl Address {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: AddressMessage = answer.read(RTM_NEWADDR)?;
        let (mut local, mut remote) = (None, None);
        let mut flags = AddressFlags::empty();
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(address) => local = Some(*address),
                AddressAttribute::Address(address) => remote = Some(*address),
                AddressAttribute::Flags(found) => flags = *found,
                _ => {}
            }
        }
        // The kernel sends `Local` for an IPv6 address only if the address has a peer. Without
        // `Local`, `Address` is the link's own address.
        let address = IpNetwork::new(local.or(remote)?, message.header.prefix_len).ok()?;
        Some(Self {
            link: message.header.index,
            address,
            is_tentative: flags.contains(AddressFlags::Tentative),
            is_duplicate: flags.contains(AddressFlags::Dadfailed),
            is_link_local: address.is_ipv6() && message.header.scope == AddressScope::Link,
            expires: !flags.contains(AddressFlags::Permanent),
        })
    }
}

/// Returns the message that adds `address`. An IPv4 address gets the broadcast address of its
/// network, if the network has one. Equivalent to `ip address add … broadcast +`.
fn addition(link: u32, address: IpNetwork, dad: Dad) -> AddressMessage {
    let mut message = message(link, address);
    match address {
        IpNetwork::V4(v4) if v4.prefix() <= LONGEST_WITH_BROADCAST => {
            let broadcast = AddressAttribute::Broadcast(v4.broadcast());
            message.attributes.push(broadcast);
        }
        IpNetwork::V6(_) if dad == Dad::Skip => message.header.flags = AddressHeaderFlags::Nodad,
        _ => {}
    }
    message
}

/// Returns a netlink message that identifies `address` on the link with this index.
fn message(link: u32, address: IpNetwork) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = link;
    message.header.prefix_len = address.prefix();
    message.header.family = IpVersion::of(address.ip()).into();
    message.attributes = vec![
        AddressAttribute::Local(address.ip()),
        AddressAttribute::Address(address.ip()),
    ];
    message
}

/// Longest prefix of a network with a broadcast address: networks of one or two addresses have no
/// broadcast address (RFC 3021).
const LONGEST_WITH_BROADCAST: u8 = 30;

/// Returns the destination of a default route: 0.0.0.0 or `::`. The parser of routes needs it,
/// because the kernel's message about a default route lacks the destination.
pub(crate) fn unspecified(family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => IpAddr::from(Ipv4Addr::UNSPECIFIED),
    }
}
