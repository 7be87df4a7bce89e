//! Which route the kernel takes to an address.

use std::net::IpAddr;

use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteType};
use nix::errno::Errno;
use nix::libc::{RTM_GETROUTE, RTM_NEWROUTE};

use crate::address::family;
use crate::connection::Connection;
use crate::error::Error;
use crate::message::Message;
use crate::request::Request;
use crate::route::{Route, address};
use crate::transport::Outcome;

impl Connection {
    /// Index of the link by which packets to `address` leave; `None` where no route leads
    /// there. As `ip route get`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn link_towards(&self, address: IpAddr) -> Result<Option<u32>, Error> {
        let route = self.route_to(address)?;
        let route = route.and_then(|it| Route::from_message(&it));
        Ok(route.and_then(|route| route.links().next()))
    }

    /// The routes in the kernel's tables that lead to `addresses`, in that order; `None` where packets go
    /// nowhere. As `ip route get fibmatch`.
    ///
    /// # Errors
    /// [`Error::Unanswered`].
    pub fn routes_to(&self, addresses: &[IpAddr]) -> Result<Vec<Option<Route>>, Error> {
        let matching = |to: &IpAddr| {
            let mut message = lookup(*to);
            message.header.flags = RouteFlags::FibMatch;
            request(*to, &message)
        };
        let outcomes = self
            .transport
            .outcomes(addresses.iter().map(matching).collect())?;
        Ok(outcomes.into_iter().map(matched).collect())
    }

    fn route_to(&self, address: IpAddr) -> Result<Option<RouteMessage>, Error> {
        match self.answers(request(address, &lookup(address))) {
            Err(error) if error.errno() == Some(Errno::ENETUNREACH) => Ok(None),
            replies => Ok(replies?.iter().find_map(|it| it.read(RTM_NEWROUTE))),
        }
    }
}

/// A refusal says that there is no route, or what a route says that leads nowhere.
fn matched(outcome: Outcome) -> Option<Route> {
    let replies = outcome.ok()?;
    let message = replies
        .iter()
        .find_map(|it| it.read::<RouteMessage>(RTM_NEWROUTE))?;
    match message.header.kind {
        RouteType::Unicast | RouteType::Local => Route::of_any_kind(&message),
        _ => None,
    }
}

fn request(to: IpAddr, message: &RouteMessage) -> Request {
    let message = Message::new(RTM_GETROUTE, message);
    Request::new(format!("look up the route to {to}"), message, 0)
}

/// The question which way packets to `to` take.
fn lookup(to: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(to);
    message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
    message
        .attributes
        .push(RouteAttribute::Destination(address(to)));
    message
}
