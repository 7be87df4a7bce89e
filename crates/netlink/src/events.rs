//! Waits for changes of links, addresses and default routes. An event names the changed object
//! without its new state, so the caller reads the state itself.

use std::io;
use std::time::Duration;

use nix::libc::{RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE};

use crate::{Connection, Error, Message, Protocol, ReceiveError, Socket};

/// A socket that receives the kernel's notifications about changes of links, addresses and routes
/// in one namespace.
pub struct RouteEvents {
    socket: Socket,
}

/// A notification of the kernel: which object changed. The caller reads the new state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteEvent {
    /// The link with this index changed or was created or deleted.
    Link(u32),
    /// An address was added to the link with this index, or removed.
    Address(u32),
    /// A default route was added or deleted, in any routing table.
    DefaultRoute,
    /// Events may be lost: the socket overflowed, or received a message that is no event.
    Lost,
    /// Any other notification, for example about a route that is no default route.
    Other,
}

impl RouteEvents {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let Connection { socket, .. } = Connection::to(Protocol::Route, &GROUPS)?;
        Ok(Self { socket })
    }

    /// Waits for the next event, without a time limit.
    ///
    /// # Errors
    /// The socket failed.
    pub fn receive(&self) -> io::Result<RouteEvent> {
        loop {
            match self.socket.notification(Duration::MAX) {
                Ok(message) => return Ok(RouteEvent::read(&message)),
                Err(ReceiveError::Deadline) => {}
                Err(ReceiveError::Socket(error)) => return Err(error),
                Err(ReceiveError::Lost | ReceiveError::TooLong) => return Ok(RouteEvent::Lost),
            }
        }
    }
}

impl RouteEvent {
    fn read(message: &Message) -> Self {
        let is_default = message.destination_length() == Some(0);
        match (message.kind, message.subject()) {
            (RTM_NEWLINK | RTM_DELLINK, Some((_, index))) => Self::Link(index),
            (RTM_NEWADDR | RTM_DELADDR, Some((_, index))) => Self::Address(index),
            (RTM_NEWROUTE | RTM_DELROUTE, _) if is_default => Self::DefaultRoute,
            _ => Self::Other,
        }
    }
}

/// Multicast groups of the events: `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV4_ROUTE`,
/// `RTNLGRP_IPV6_IFADDR` and `RTNLGRP_IPV6_ROUTE`.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_the_link_or_the_default_route() {
        let event = |kind, body: &[u8]| {
            let body = body.to_vec();
            RouteEvent::read(&Message {
                kind,
                flags: 0,
                body,
            })
        };
        let of_link = [&[0, 0, 1, 0][..], &7_u32.to_ne_bytes()].concat();
        assert_eq!(event(RTM_NEWLINK, &of_link), RouteEvent::Link(7));
        assert_eq!(event(RTM_DELADDR, &of_link), RouteEvent::Address(7));
        assert_eq!(event(RTM_DELADDR, &[2, 24]), RouteEvent::Other);
        assert_eq!(event(RTM_NEWROUTE, &[2, 0, 0]), RouteEvent::DefaultRoute);
        assert_eq!(event(RTM_NEWROUTE, &[2, 24, 0]), RouteEvent::Other);
    }
}
