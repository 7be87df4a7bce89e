//! Receives the kernel's notifications of one multicast group.

use std::time::Duration;

use netlink::{Content, Protocol, Received, Silence, Socket};

use crate::error::{Error, failed};
use crate::raw::RawMessage;

/// A netlink socket that listens to one multicast group of netfilter.
pub(crate) struct Listener(Socket);

impl Listener {
    pub fn open(group: u32) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter, &[group]);
        socket.map(Self).map_err(failed(LISTEN))
    }

    /// Enlarges the receive buffer, so that fewer notifications are lost between two reads.
    pub fn make_room(&self) -> Result<(), Error> {
        self.0.make_room(ROOM).map_err(failed(LISTEN))
    }

    /// Returns the next notification; `None` if it cannot be parsed. Returns the error
    /// [`Silence::Deadline`] if no notification arrives within `patience`, and [`Silence::Lost`] if
    /// notifications were lost.
    pub fn report(&self, patience: Duration) -> Result<Option<RawMessage>, Silence> {
        let Received { header, content } = self.0.receive(patience)?;
        Ok(match content {
            Content::Object(body) => RawMessage::read(header.kind, &body),
            Content::Refused(_) | Content::End => None,
        })
    }
}

const LISTEN: &str = "listen to a netfilter socket";

/// Size in bytes of the enlarged receive buffer.
const ROOM: usize = 16 << 20;
