//! Looks up the route that the kernel uses for an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteType};
use nix::libc::{RTM_GETROUTE, RTM_NEWROUTE};

use crate::connection::Outcome;
use crate::route::list;
use crate::{Connection, Error, IpVersion, Message, Request, Route};

impl Connection {
    /// Returns the index of the link through which packets to `address` leave. Returns `None` if no
    /// unicast route matches: there is no route, it drops the packets, or `address` belongs to this
    /// host. Equivalent to `ip route get`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn link_towards(&self, address: IpAddr) -> Result<Option<u32>, Error> {
        let request = [lookup(address, RouteFlags::empty(), None)];
        match self.objects(&request, Route::from_answer) {
            Err(error) if error.is_no_route() || error.is_discarding_route() => Ok(None),
            routes => Ok(routes?.first().and_then(|it| it.links().next())),
        }
    }

    /// Returns the route that the kernel uses for each of `addresses`, in the order of `addresses`.
    /// An element is `None` if the kernel has no unicast or local route to the address, or drops
    /// packets to it. Equivalent to `ip route get fibmatch`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub fn routes_to(&self, addresses: &[IpAddr]) -> Result<Vec<Option<Route>>, Error> {
        let answers = self.lookups(addresses, None)?.into_iter();
        answers.map(route).collect()
    }

    /// Returns whether the kernel has a local route for each of `addresses`, which are addresses of
    /// the link with the index `link`. The kernel drops packets to an address without a local
    /// route. Equivalent to `ip route get fibmatch … oif`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub(crate) fn delivers(&self, link: u32, addresses: &[IpAddr]) -> Result<bool, Error> {
        for outcome in self.lookups(addresses, Some(link))? {
            if !route(outcome)?.is_some_and(|it| it.is_local) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the default routes in use, usually one for each IP version. A default route is in
    /// use if the kernel chooses it for a probe address: an address that usually only a default
    /// route matches.
    ///
    /// Looks up at most three probe addresses of each version, so the time does not depend on the
    /// number of routes. If the kernel chooses other routes for all three, this function reads all
    /// routes and returns all default routes of that version.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub fn default_routes_in_use(&self) -> Result<Vec<Route>, Error> {
        let mut families = vec![(IpVersion::V4, PROBES_V4), (IpVersion::V6, PROBES_V6)];
        let mut found = Vec::new();
        for place in 0..PROBES_V4.len() {
            let probes = families.iter().filter_map(|(_, probes)| probes.get(place));
            let probes: Vec<_> = probes.copied().collect();
            let mut answers = self.lookups(&probes, None)?.into_iter();
            families.retain(|_| match answers.next() {
                Some(Err(error)) => !(error.is_no_route() || error.is_unknown_family()),
                Some(Ok(replies)) => match matched(&replies).filter(Route::is_default) {
                    Some(route) => {
                        found.push(route);
                        false
                    }
                    None => true,
                },
                None => true,
            });
        }
        let families = families.into_iter().map(|(family, _)| family);
        found.extend(self.default_routes_of(families)?);
        Ok(found)
    }

    /// Returns all default routes of both families and all tables. The kernel walks all routes, so
    /// this is slower than [`Self::default_routes_in_use`].
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn default_routes(&self) -> Result<Vec<Route>, Error> {
        self.default_routes_of(IpVersion::ALL)
    }

    fn default_routes_of(
        &self,
        families: impl IntoIterator<Item = IpVersion>,
    ) -> Result<Vec<Route>, Error> {
        let is_default = |answer: &Message| answer.destination_length() == Some(0);
        let lists = families.into_iter().map(|it| list(it, RouteType::Unicast));
        let lists: Vec<_> = lists.map(|it| it.keeping(is_default)).collect();
        self.objects(&lists, Route::from_answer)
    }

    /// Looks up the routes to `addresses` and returns the kernel's answers in the order of
    /// `addresses`. If `through` is the index of a link, the kernel considers only routes through
    /// this link.
    fn lookups(&self, addresses: &[IpAddr], through: Option<u32>) -> Result<Vec<Outcome>, Error> {
        let matching = |to: &IpAddr| lookup(*to, RouteFlags::FibMatch, through);
        let lookups: Vec<_> = addresses.iter().map(matching).collect();
        self.outcomes(&lookups)
    }
}

/// Returns the unicast or local route that a look-up found; `None` if the kernel has none or drops
/// the packets.
fn route(outcome: Outcome) -> Result<Option<Route>, Error> {
    match outcome {
        Err(error) if error.is_no_route() || error.is_discarding_route() => Ok(None),
        outcome => outcome.map(|replies| matched(&replies)),
    }
}

/// Returns the unicast or local route in the kernel's reply to a look-up; `None` if the reply
/// contains no such route.
fn matched(replies: &[Message]) -> Option<Route> {
    let message: RouteMessage = replies.iter().find_map(|it| it.read(RTM_NEWROUTE))?;
    match message.header.kind {
        RouteType::Unicast | RouteType::Local => Route::of_any_kind(&message),
        _ => None,
    }
}

/// Returns the request that looks up the route to `to`. If `through` is the index of a link, the
/// kernel considers only routes through this link.
fn lookup(to: IpAddr, flags: RouteFlags, through: Option<u32>) -> Request {
    let mut message = RouteMessage::default();
    message.header.address_family = IpVersion::of(to).into();
    message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
    message.header.flags = flags;
    message.attributes = vec![RouteAttribute::Destination(to.into())];
    message.attributes.extend(through.map(RouteAttribute::Oif));
    Request::read(format!("look up the route to {to}"), RTM_GETROUTE, &message)
}

/// Probe addresses, which usually only a default route matches: one for documentation (RFC 5737),
/// one reserved (RFC 1112), and one in 30.0.0.0/8 (US Department of Defense), for which hosts
/// rarely have another route.
const PROBES_V4: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(30, 0, 0, 1)),
];

/// Probe addresses, which usually only a default route matches: two of unassigned space (RFC 4291)
/// and one for documentation (RFC 3849).
const PROBES_V6: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0x4000, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
