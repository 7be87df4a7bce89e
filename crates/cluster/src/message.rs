//! Routes of this crate as messages of rtnetlink.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};

/// Protocol of this crate's routes: `ip route show proto 201` lists them. iproute2's `rt_protos`
/// does not assign this number.
pub const PROTOCOL: u8 = 201;

/// A route of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// The next router: the address of another node; `None` if the link needs none.
    pub gateway: Option<IpAddr>,
    /// Index of the link to the gateway.
    pub link: u32,
    /// Whether the kernel believes that the link leads to the gateway, without an address of its
    /// network.
    pub is_onlink: bool,
    /// The metric; `None` if it is the kernel's default, the smallest one that this crate uses.
    pub metric: Option<u32>,
    /// The source of the node's own packets; `None` if it is an address of the link.
    pub source: Option<IpAddr>,
}

impl Route {
    /// Returns the route in `message`. `None` if the route is not one that [`Self::message`]
    /// makes.
    pub fn read(message: &RouteMessage) -> Option<Self> {
        let is_unicast = message.header.kind == RouteType::Unicast;
        is_unicast.then_some(Self {
            gateway: find(message, |it| match it {
                RouteAttribute::Gateway(gateway) => ip(gateway),
                _ => None,
            }),
            link: link(message)?,
            is_onlink: message.header.flags.contains(RouteFlags::Onlink),
            metric: metric(message),
            source: find(message, |it| match it {
                RouteAttribute::PrefSource(source) => ip(source),
                _ => None,
            }),
        })
    }

    /// Returns whether packets go to another node's own address.
    pub fn is_direct(&self) -> bool {
        self.gateway.is_some() && !self.is_onlink
    }

    /// Returns the message that describes this route to `network`.
    pub fn message(self, network: IpNetwork) -> RouteMessage {
        let mut message = to(network);
        message.header.protocol = RouteProtocol::Other(PROTOCOL);
        let gateway = self.gateway.map(|it| RouteAttribute::Gateway(it.into()));
        message.attributes.extend(gateway);
        message.attributes.push(RouteAttribute::Oif(self.link));
        let metric = self.metric.map(RouteAttribute::Priority);
        let source = self.source.map(|it| RouteAttribute::PrefSource(it.into()));
        message.attributes.extend(metric.into_iter().chain(source));
        if self.is_onlink {
            message.header.flags |= RouteFlags::Onlink;
        }
        message
    }
}

/// Returns the route that refuses packets to `network` if there is no other one: it has the largest
/// metric.
pub(crate) fn refusal(network: IpNetwork) -> RouteMessage {
    let mut message = to(network);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.kind = RouteType::Unreachable;
    message.attributes.push(RouteAttribute::Priority(u32::MAX));
    message
}

/// Returns whether the route is one of [`refusal`], or another that refuses packets.
pub(crate) fn is_refusal(message: &RouteMessage) -> bool {
    message.header.kind == RouteType::Unreachable
}

/// Returns a message with the destination `network`, of the main table and no other properties.
pub(crate) fn to(network: IpNetwork) -> RouteMessage {
    let mut message = RouteMessageBuilder::<IpAddr>::new().build();
    message.header.address_family = family(network);
    message.header.destination_prefix_length = network.prefix();
    let destination = RouteAttribute::Destination(network.ip().into());
    message.attributes.push(destination);
    message
}

/// Returns a message that asks for all routes of a family.
pub(crate) fn all(family: AddressFamily) -> RouteMessage {
    let mut message = RouteMessageBuilder::<IpAddr>::new().build();
    message.header.address_family = family;
    message
}

/// Returns the destination of a route of the main table. `None` if the route is in another table.
pub(crate) fn destination(message: &RouteMessage) -> Option<IpNetwork> {
    if message.header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let address = find(message, |it| match it {
        RouteAttribute::Destination(address) => ip(address),
        _ => None,
    });
    IpNetwork::new(address?, message.header.destination_prefix_length).ok()
}

/// Returns whether the route has the protocol of this crate's routes.
pub(crate) fn is_own(message: &RouteMessage) -> bool {
    message.header.protocol == RouteProtocol::Other(PROTOCOL)
}

/// Returns whether the route leads through a router.
pub(crate) fn has_gateway(message: &RouteMessage) -> bool {
    let mut attributes = message.attributes.iter();
    attributes.any(|it| matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)))
}

/// Returns the index of the link that the route uses.
pub(crate) fn link(message: &RouteMessage) -> Option<u32> {
    find(message, |it| match it {
        RouteAttribute::Oif(link) => Some(*link),
        _ => None,
    })
}

/// Returns the metric of a route; `None` if it is the kernel's default one.
pub(crate) fn metric(message: &RouteMessage) -> Option<u32> {
    let is_ipv6 = message.header.address_family == AddressFamily::Inet6;
    let metric = find(message, |it| match it {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    });
    metric.filter(|it| !(is_ipv6 && *it == IPV6_DEFAULT))
}

fn find<T>(message: &RouteMessage, value: impl FnMut(&RouteAttribute) -> Option<T>) -> Option<T> {
    message.attributes.iter().find_map(value)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn family(network: IpNetwork) -> AddressFamily {
    match network {
        IpNetwork::V4(_) => AddressFamily::Inet,
        IpNetwork::V6(_) => AddressFamily::Inet6,
    }
}

/// The metric of an IPv6 route that is created without one.
const IPV6_DEFAULT: u32 = 1024;
