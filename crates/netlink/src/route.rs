//! Reads and adds routes.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
    RouteProtocol, RouteScope, RouteType, RouteVia,
};
use nix::libc::{RT_TABLE_LOCAL, RT_TABLE_MAIN, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE};

use crate::address::unspecified;
use crate::{Connection, Error, IpVersion, Message, Request};

/// A route in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination; a prefix of length 0 is the default route.
    pub destination: IpNetwork,
    /// The next hop's address; `None` for a multipath route and for a destination on the link
    /// itself.
    pub gateway: Option<IpAddr>,
    /// Number of the routing table; 254 is `main`.
    pub table: u32,
    /// The metric; `None` where the kernel reports none.
    pub priority: Option<u32>,
    /// The route comes from a router advertisement (protocol `ra`).
    pub is_from_router_advertisement: bool,
    /// The destination is local to this host (route type `local`).
    pub is_local: bool,
    /// The type of a route that drops packets, as ip-route(8) names it: `blackhole`, `unreachable`
    /// or `prohibit`. `None` if the route does not drop packets.
    pub discards: Option<&'static str>,
    /// The route comes from an address of the link, from DHCP or from a router advertisement
    /// (protocol `kernel`, `dhcp` or `ra`).
    is_of_link: bool,
    link: Option<u32>,
    next_hops: Vec<NextHop>,
}

/// A next hop of a multipath route.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NextHop {
    link: u32,
    gateway: Option<IpAddr>,
}

/// A route to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRoute {
    /// The destination.
    pub destination: IpNetwork,
    /// The next hop; `None` for a destination on the link itself.
    pub gateway: Option<IpAddr>,
    /// Index of the link through which the packets leave.
    pub link: u32,
    /// MTU in bytes; `None` if the route sets none.
    pub mtu: Option<u32>,
    /// TCP MSS in bytes that the host announces to its peers; `None` if the kernel chooses.
    pub advmss: Option<u32>,
    /// The metric; `None` for the kernel's default.
    pub priority: Option<u32>,
    /// Number of the routing table; `None` for `main`.
    pub table: Option<u32>,
    /// The scope, as in rtnetlink(7). `None` means `link` for an IPv4 route without a gateway. For
    /// any other route, `None` means `universe`.
    pub scope: Option<u8>,
    /// Source address of packets that the host itself sends; `None` if the kernel chooses.
    pub source: Option<IpAddr>,
}

impl NewRoute {
    /// Returns a route to `destination` over the link with this index, without a gateway and
    /// without other attributes.
    pub fn on_link(destination: IpNetwork, link: u32) -> Self {
        Self {
            destination,
            gateway: None,
            link,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
            source: None,
        }
    }

    fn message(&self) -> RouteMessage {
        let table = self.table.unwrap_or(RT_TABLE_MAIN.into());
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: IpVersion::of(self.destination.ip()).into(),
            destination_prefix_length: self.destination.prefix(),
            // The number of a table above 255 does not fit into the header. The attribute
            // `RouteAttribute::Table` contains it.
            table: table.try_into().unwrap_or_default(),
            protocol: RouteProtocol::Boot,
            scope: self.scope.map_or(self.default_scope(), RouteScope::from),
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let metrics = [
            self.mtu.map(RouteMetric::Mtu),
            self.advmss.map(RouteMetric::Advmss),
        ];
        let metrics: Vec<_> = metrics.into_iter().flatten().collect();
        let destination = RouteAttribute::Destination(self.destination.network().into());
        message.attributes = vec![destination, RouteAttribute::Oif(self.link)];
        message.attributes.extend(
            [
                self.gateway.map(|it| RouteAttribute::Gateway(it.into())),
                self.source.map(|it| RouteAttribute::PrefSource(it.into())),
                self.priority.map(RouteAttribute::Priority),
                self.table.map(RouteAttribute::Table),
                (!metrics.is_empty()).then_some(RouteAttribute::Metrics(metrics)),
            ]
            .into_iter()
            .flatten(),
        );
        message
    }

    fn default_scope(&self) -> RouteScope {
        match self.gateway {
            None if self.destination.is_ipv4() => RouteScope::Link,
            _ => RouteScope::Universe,
        }
    }
}

impl Request {
    /// Returns a request that adds a route. Existing routes to the same destination stay, and precede
    /// a new IPv4 route of the same metric: `ip -4 route append`. The kernel refuses a new IPv6 route
    /// of the same metric as existing ones: `ip -6 route add`. Otherwise, it would join both to one
    /// multipath route.
    pub fn add_route(route: &NewRoute) -> Self {
        let place = match route.destination {
            IpNetwork::V4(_) => NLM_F_APPEND,
            IpNetwork::V6(_) => NLM_F_EXCL,
        };
        Self::new_route(route, place)
    }

    /// Returns a request that adds a route like [`Self::add_route`]. A new IPv4 route precedes
    /// existing routes of the same metric. A new IPv6 route precedes other routes only if its
    /// metric is lower. Equivalent to `ip route prepend`.
    pub fn prepend_route(route: &NewRoute) -> Self {
        Self::new_route(route, 0)
    }

    /// Returns a request that deletes a route that [`Self::add_route`] added.
    pub fn delete_route(route: &NewRoute) -> Self {
        let operation = format!("delete route {}", route.destination);
        Self::change(operation, RTM_DELROUTE, &route.message())
    }

    fn new_route(route: &NewRoute, place: u16) -> Self {
        let via = |gateway: IpAddr| format!(" via {gateway}");
        let via = route.gateway.map(via).unwrap_or_default();
        let operation = format!("add route {}{via}", route.destination);
        Self::change(operation, RTM_NEWROUTE, &route.message()).with(NLM_F_CREATE | place)
    }
}

impl Connection {
    /// Returns the unicast routes of both families and all tables. Equivalent to `ip route show
    /// table all`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn routes(&self) -> Result<Vec<Route>, Error> {
        let lists = IpVersion::ALL.map(|it| list(it, RouteType::Unicast));
        self.objects(&lists, Route::from_answer)
    }

    /// Returns the routes of both families and all tables that make the kernel drop packets.
    /// Equivalent to `ip route show table all type blackhole`, and the same for `unreachable` and
    /// `prohibit`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn discarding_routes(&self) -> Result<Vec<Route>, Error> {
        let lists = IpVersion::ALL.map(|it| list(it, RouteType::Unspec));
        let route = |answer: &Message| Route::of_any_kind(&answer.read(RTM_NEWROUTE)?);
        let discarding = |it: &Route| it.discards.is_some();
        self.objects(&lists, |answer| route(answer).filter(discarding))
    }

    /// Returns the addresses and networks of this IP version that are local to this host.
    /// Equivalent to `ip route show table local type local`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn local_destinations(&self, version: IpVersion) -> Result<Vec<IpNetwork>, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = version.into();
        message.header.table = RT_TABLE_LOCAL;
        message.header.kind = RouteType::Local;
        let request = Request::list("read local addresses", RTM_GETROUTE, &message);
        let route = |answer: &Message| Route::of_any_kind(&answer.read(RTM_NEWROUTE)?);
        let routes = self.objects(&[request], route)?.into_iter();
        Ok(routes.map(|it| it.destination).collect())
    }
}

/// Returns the request for all routes of a family and of the type `kind`; [`RouteType::Unspec`]
/// asks for all types. The kernel may also return routes of other types, so the caller has to
/// compare the type.
pub(crate) fn list(version: IpVersion, kind: RouteType) -> Request {
    let mut message = RouteMessage::default();
    message.header.address_family = version.into();
    message.header.kind = kind;
    Request::list("read routes", RTM_GETROUTE, &message)
}

impl Route {
    /// Returns whether this is a default route (prefix length 0).
    pub fn is_default(&self) -> bool {
        self.destination.prefix() == 0
    }

    /// Returns the metric; 0 if the kernel reports none. The kernel prefers the route with the
    /// lowest metric.
    pub fn metric(&self) -> u32 {
        self.priority.unwrap_or_default()
    }

    /// Returns the indices of the links through which packets leave. A multipath route has several
    /// links.
    pub fn links(&self) -> impl Iterator<Item = u32> {
        let hops = self.next_hops.iter().map(|hop| hop.link);
        self.link.into_iter().chain(hops)
    }

    /// Returns whether packets of this route may leave through the link with this index.
    pub fn uses(&self, link: u32) -> bool {
        self.links().any(|it| it == link)
    }

    /// Returns whether `gateway` on the link with this index is a next hop of the route, or one of
    /// the next hops of a multipath route. If `gateway` is `None`, returns whether the route has a
    /// next hop on this link that needs no gateway.
    pub fn leads_by(&self, link: u32, gateway: Option<IpAddr>) -> bool {
        let hop = NextHop { link, gateway };
        self.next_hops.contains(&hop) || (self.link == Some(link) && self.gateway == gateway)
    }

    /// Returns whether the destinations of the route are neighbours on its link. Default routes,
    /// multipath routes and routes with a gateway do not count. Any other route counts if its
    /// destination is a single host, or if the kernel, DHCP or a router advertisement added the
    /// route. A route that an administrator added for a network does not count, because the network
    /// may contain addresses that are not on the link.
    pub fn is_connected(&self) -> bool {
        let on_link = self.gateway.is_none() && self.next_hops.is_empty() && !self.is_default();
        let is_host = self.destination == IpNetwork::from(self.destination.ip());
        on_link && (self.is_of_link || is_host)
    }

    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: RouteMessage = answer.read(RTM_NEWROUTE)?;
        let is_unicast = message.header.kind == RouteType::Unicast;
        Self::of_any_kind(&message).filter(|_| is_unicast)
    }

    pub(crate) fn of_any_kind(message: &RouteMessage) -> Option<Self> {
        let mut destination = unspecified(message.header.address_family);
        let mut route = Self {
            destination: IpNetwork::from(destination),
            gateway: None,
            table: u32::from(message.header.table),
            priority: None,
            is_from_router_advertisement: message.header.protocol == RouteProtocol::Ra,
            is_local: message.header.kind == RouteType::Local,
            discards: match message.header.kind {
                RouteType::BlackHole => Some("blackhole"),
                RouteType::Unreachable => Some("unreachable"),
                RouteType::Prohibit => Some("prohibit"),
                _ => None,
            },
            is_of_link: matches!(
                message.header.protocol,
                RouteProtocol::Kernel | RouteProtocol::Dhcp | RouteProtocol::Ra
            ),
            link: None,
            next_hops: Vec::new(),
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => destination = ip(address)?,
                RouteAttribute::Oif(index) => route.link = Some(*index),
                RouteAttribute::Table(table) => route.table = *table,
                RouteAttribute::Priority(priority) => route.priority = Some(*priority),
                RouteAttribute::MultiPath(hops) => {
                    route.next_hops = hops.iter().map(NextHop::read).collect();
                }
                other => route.gateway = gateway(other).or(route.gateway),
            }
        }
        let prefix = message.header.destination_prefix_length;
        route.destination = IpNetwork::new(destination, prefix).ok()?;
        Some(route)
    }
}

impl NextHop {
    fn read(hop: &RouteNextHop) -> Self {
        Self {
            link: hop.interface_index,
            gateway: hop.attributes.iter().find_map(gateway),
        }
    }
}

/// Returns the gateway in the attribute; `None` if the attribute contains none. An IPv4 route may
/// have an IPv6 gateway (RFC 8950).
fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some((*address).into()),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some((*address).into()),
        _ => None,
    }
}

pub(crate) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
