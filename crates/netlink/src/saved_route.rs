//! Routes with all their attributes, which a caller adds again, also to another table.
//!
//! The kernel accepts the bytes in which it describes a route as a request for this route, but for
//! a few values of the moment. So this module parses no attribute that it does not change, and
//! keeps those that this crate does not know, such as metrics and encapsulation. ip-route(8) does
//! the same for `ip route save` and `ip route restore`.

use std::iter;
use std::net::IpAddr;

use ipnetwork::Ipv4Network;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};
use nix::libc::{
    RTA_CACHEINFO, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, RTA_TABLE,
    RTM_DELROUTE, RTM_NEWROUTE,
};
use serde::{Deserialize, Serialize};

use crate::attributes::{Attributes, attributes, entry, short, word};
use crate::message::{ALIGNMENT, Bytes, values};
use crate::route::{ip, list};
use crate::{Connection, Error, IpVersion, Message, Request, Route};

/// A unicast route with all attributes that the kernel reported.
///
/// It is serialized as the bytes in which the kernel described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct SavedRoute {
    /// What this crate knows of the route. A part, as of [`Self::through`], has all next hops here.
    pub route: Route,
    /// Source address of packets that the host itself sends; `None` if the kernel chooses.
    pub source: Option<IpAddr>,
    /// `struct rtmsg`.
    header: [u8; HEADER],
    attributes: Vec<(u16, Vec<u8>)>,
}

impl Connection {
    /// Returns the unicast routes of both families and all tables, for restoration.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn saved_routes(&self) -> Result<Vec<SavedRoute>, Error> {
        let lists = IpVersion::ALL.map(|it| list(it, RouteType::Unicast));
        self.objects(&lists, SavedRoute::from_answer)
    }
}

impl SavedRoute {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: RouteMessage = answer.read(RTM_NEWROUTE)?;
        let (header, rest) = answer.body.split_first_chunk()?;
        let mut sources = values!(&message.attributes, RouteAttribute::PrefSource);
        Some(Self {
            route: Route::from_answer(answer)?,
            source: sources.find_map(ip),
            header: *header,
            attributes: attributes(rest)
                .map(|it| (it.kind, it.value.to_vec()))
                .collect(),
        })
    }

    /// Returns the requests that make the IPv4 source of the route local in the route's table, and
    /// revert that; `None` if the route has no such source. `link` is the index of the link that has
    /// the address. Equivalent to `ip route add local SOURCE dev LINK table TABLE`.
    pub fn local_source(&self, link: u32) -> Option<(Request, Request)> {
        let IpAddr::V4(source) = self.source? else {
            return None;
        };
        let table = self.route.table;
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 32;
        message.header.table = table.try_into().unwrap_or_default();
        message.header.scope = RouteScope::Host;
        message.header.kind = RouteType::Local;
        message.attributes = vec![
            RouteAttribute::Destination(source.into()),
            RouteAttribute::Oif(link),
            RouteAttribute::Table(table),
        ];
        let operation = |verb| format!("{verb} local route {source} in table {table}");
        let addition = Request::create(operation("add"), RTM_NEWROUTE, &message);
        Some((
            addition,
            Request::change(operation("delete"), RTM_DELROUTE, &message),
        ))
    }

    /// Returns whether the packets need no gateway.
    pub fn is_direct(&self) -> bool {
        self.route.gateway.is_none() && self.value(RTA_MULTIPATH).is_none()
    }

    /// Returns whether the kernel itself added the route, because of an address.
    pub fn is_of_kernel(&self) -> bool {
        self.header[PROTOCOL] == OF_KERNEL
    }

    /// Returns whether the route has next hops through the link with this index, and others.
    pub fn is_shared(&self, link: u32) -> bool {
        self.route.uses(link) && self.beside(link).is_some()
    }

    /// Returns the route for the table with this number.
    #[must_use]
    pub fn in_table(&self, table: u32) -> Self {
        let mut route = self.clone();
        route.route.table = table;
        route.header[TABLE] = table.try_into().unwrap_or_default();
        route.set(RTA_TABLE, table.to_ne_bytes().to_vec());
        route
    }

    /// Returns the IPv4 route with other addresses: `change` gets the destination, and the source and the
    /// gateway as networks of one address. Keeps the gateways of a multipath route.
    #[must_use]
    pub fn with_addresses(&self, change: impl Fn(Ipv4Network) -> Ipv4Network) -> Self {
        let mut route = self.clone();
        for (kind, value) in &mut route.attributes {
            let length = match *kind {
                RTA_DST => route.header[DESTINATION_LENGTH],
                RTA_GATEWAY | RTA_PREFSRC => 32,
                _ => continue,
            };
            let octets = <[u8; 4]>::try_from(value.as_slice());
            let network = octets.map(|it| Ipv4Network::new(it.into(), length));
            let Ok(Ok(network)) = network else { continue };
            let network = change(network);
            *value = network.ip().octets().to_vec();
            if *kind == RTA_DST {
                route.header[DESTINATION_LENGTH] = network.prefix();
            }
        }
        Self::try_from(Vec::from(route)).unwrap_or_else(|_| self.clone())
    }

    /// Returns the route with only those next hops that leave through the link with this index;
    /// `None` if there are none.
    #[must_use]
    pub fn through(&self, link: u32) -> Option<Self> {
        self.with_hops(|it| it == link)
    }

    /// Returns the route with the next hops that leave through other links; `None` if there are
    /// none.
    fn beside(&self, link: u32) -> Option<Self> {
        self.with_hops(|it| it != link)
    }

    fn with_hops(&self, keeps: impl Fn(u32) -> bool) -> Option<Self> {
        let Some(paths) = self.value(RTA_MULTIPATH) else {
            let mut links = self.route.links();
            return links.any(keeps).then(|| self.clone());
        };
        let link = |hop: &&[u8]| hop.get(HOP_LINK..).and_then(word);
        let kept = hops(paths).filter(|hop| link(hop).is_some_and(&keeps));
        let kept: Vec<_> = kept.flatten().copied().collect();
        let mut route = self.clone();
        route.set(RTA_MULTIPATH, kept.clone());
        (!kept.is_empty()).then_some(route)
    }

    /// Returns a request that adds the route. An existing route of the same metric stays: it
    /// precedes a new IPv4 route, and becomes one multipath route with a new IPv6 route. The kernel
    /// refuses a route that exists. Equivalent to `ip route append`.
    pub fn addition(&self) -> Request {
        self.request("add", RTM_NEWROUTE, &self.for_addition())
            .with(NLM_F_CREATE | NLM_F_APPEND)
    }

    /// Returns a request that deletes the next hops through the link with this index, and the route
    /// if it has no others.
    pub fn removal(&self, link: u32) -> Request {
        match (self.beside(link), self.through(link)) {
            // The kernel deletes an IPv4 route only as a whole.
            (Some(rest), _) if self.route.destination.is_ipv4() => rest.replacement(),
            (_, Some(part)) => part.deletion(),
            (_, None) => self.deletion(),
        }
    }

    /// Returns a request that reverts [`Self::removal`].
    pub fn restoration(&self, link: u32) -> Request {
        match (self.beside(link), self.through(link)) {
            (Some(_), _) if self.route.destination.is_ipv4() => self.replacement(),
            (_, Some(part)) => part.addition(),
            (_, None) => self.addition(),
        }
    }

    /// Returns a request that puts the route in the place of the first one with its destination and
    /// metric. Equivalent to `ip route change`.
    fn replacement(&self) -> Request {
        self.request("replace", RTM_NEWROUTE, &self.for_addition())
            .with(NLM_F_REPLACE)
    }

    fn deletion(&self) -> Request {
        self.request("delete", RTM_DELROUTE, &self.for_deletion())
    }

    fn request(&self, verb: &str, kind: u16, bytes: &Bytes) -> Request {
        let via = |gateway: IpAddr| format!(" via {gateway}");
        let via = self.route.gateway.map(via).unwrap_or_default();
        let Route {
            destination, table, ..
        } = &self.route;
        let operation = format!("{verb} route {destination}{via} in table {table}");
        Request::change(operation, kind, bytes)
    }

    /// Returns the bytes of a request for the route: the kernel accepts neither its state (dead,
    /// offloaded) nor a next hop object beside the next hops themselves. The rest of a lifetime is
    /// in seconds there, and in ticks of `USER_HZ` in the kernel's report.
    fn for_addition(&self) -> Bytes {
        let mut route = self.clone();
        let expires = self.value(RTA_CACHEINFO).and_then(|it| entry(it, EXPIRES));
        let expires = expires.and_then(|it| u32::try_from(it / USER_HZ).ok());
        route
            .attributes
            .retain(|(kind, _)| *kind != RTA_CACHEINFO && *kind != NEXT_HOP_OBJECT);
        if let Some(seconds) = expires.filter(|it| *it != 0) {
            route.set(RTA_EXPIRES, seconds.to_ne_bytes().to_vec());
        }
        route.header[FLAGS] &= ONLINK;
        route.header[FLAGS + 1..].fill(0);
        if let Some(paths) = self.value(RTA_MULTIPATH) {
            let mut paths = paths.to_vec();
            for start in hop_starts(&paths) {
                if let Some(flags) = paths.get_mut(start + HOP_FLAGS) {
                    *flags &= ONLINK;
                }
            }
            route.set(RTA_MULTIPATH, paths);
        }
        route.bytes()
    }

    /// Returns the bytes of a request to delete the route. If the route has a next hop object, the
    /// kernel compares only its number.
    fn for_deletion(&self) -> Bytes {
        let mut route = self.clone();
        let has_object = self.value(NEXT_HOP_OBJECT).is_some();
        route.attributes.retain(|(kind, _)| {
            let is_hop = [RTA_OIF, RTA_GATEWAY, RTA_MULTIPATH, RTA_VIA].contains(kind);
            *kind != RTA_CACHEINFO && !(has_object && is_hop)
        });
        route.header[FLAGS..].fill(0);
        route.bytes()
    }

    fn bytes(&self) -> Bytes {
        let attributes = self.attributes.iter();
        let attributes = attributes.fold(Attributes::new(), |all, it| all.bytes(it.0, &it.1));
        Bytes([&self.header, &*attributes].concat())
    }

    fn value(&self, kind: u16) -> Option<&[u8]> {
        let mut attributes = self.attributes.iter();
        attributes.find(|it| it.0 == kind).map(|it| it.1.as_slice())
    }

    /// Gives the attribute `kind` this value.
    fn set(&mut self, kind: u16, value: Vec<u8>) {
        self.attributes.retain(|it| it.0 != kind);
        self.attributes.push((kind, value));
    }
}

impl From<SavedRoute> for Vec<u8> {
    fn from(route: SavedRoute) -> Self {
        route.bytes().0
    }
}

impl TryFrom<Vec<u8>> for SavedRoute {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        let answer = Message::new(RTM_NEWROUTE, &Bytes(bytes));
        Self::from_answer(&answer).ok_or("the bytes describe no unicast route")
    }
}

/// Returns the next hops in the value of `RTA_MULTIPATH`: each is a `struct rtnexthop` and its
/// attributes. A malformed one ends the list.
fn hops(paths: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = paths;
    iter::from_fn(move || {
        let length = usize::from(short(rest)?).next_multiple_of(ALIGNMENT);
        let (hop, next) = rest.split_at_checked(length.max(HOP))?;
        rest = next;
        Some(hop)
    })
}

/// Returns the offsets of the next hops in `paths`.
fn hop_starts(paths: &[u8]) -> Vec<usize> {
    let lengths = hops(paths).map(<[u8]>::len);
    let start = |next: &mut usize, length| Some(std::mem::replace(next, *next + length));
    lengths.scan(0, start).collect()
}

/// Size of `struct rtmsg`, and the offsets of `rtm_dst_len`, `rtm_table`, `rtm_protocol` and
/// `rtm_flags` in it, in bytes.
const HEADER: usize = 12;
const DESTINATION_LENGTH: usize = 1;
const TABLE: usize = 4;
const PROTOCOL: usize = 5;
const FLAGS: usize = 8;

/// Size of `struct rtnexthop`, and the offsets of `rtnh_flags` and `rtnh_ifindex` in it, in bytes.
const HOP: usize = 8;
const HOP_FLAGS: usize = 2;
const HOP_LINK: usize = 4;

/// `RTPROT_KERNEL`
const OF_KERNEL: u8 = 2;

/// `RTNH_F_ONLINK`: the gateway is on the link, whatever the routes say.
const ONLINK: u8 = 4;

/// Numbers of attributes that nix lacks.
const RTA_VIA: u16 = 18;
const RTA_EXPIRES: u16 = 23;
const NEXT_HOP_OBJECT: u16 = 30;

/// Index of the remaining lifetime in `struct rta_cacheinfo`, and its unit, ticks per second.
const EXPIRES: usize = 2;
const USER_HZ: i32 = 100;
