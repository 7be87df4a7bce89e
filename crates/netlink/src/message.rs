//! Netlink messages: a type, and bytes that the receiver parses if it expects that type.
//!
//! This crate does not use netlink-packet-route's enum of all rtnetlink messages
//! (`RouteNetlinkMessage`). With that enum, each executable would also contain the parsers of
//! messages that this suite does not need, such as rules and prefixes.

use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::AddressFamily;

/// A netlink message without its header, except for the type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// The type, such as `RTM_NEWLINK`.
    pub kind: u16,
    /// The bytes after the header.
    pub body: Vec<u8>,
}

impl Message {
    pub fn new(kind: u16, content: &impl Emitable) -> Self {
        let mut body = vec![0; content.buffer_len()];
        content.emit(&mut body);
        Self { kind, body }
    }

    /// Parses the content if the message is of this type. Returns `None` for another type and for
    /// content that does not parse.
    pub fn read<M: Parseable<[u8]>>(&self, kind: u16) -> Option<M> {
        if self.kind != kind {
            return None;
        }
        M::parse(&self.body).ok()
    }

    /// Returns the prefix length of the destination in a route message (`struct rtmsg`). Returns
    /// `None` if the message is too short. The caller has to check that this is a route message.
    pub fn destination_length(&self) -> Option<u8> {
        self.body.get(1).copied()
    }

    /// Returns the address family and the index of the link that the message is about. Every
    /// message about links or addresses contains both at the same place (`struct ifinfomsg`,
    /// `struct ifaddrmsg`). Returns `None` if the message is too short. The caller has to check the
    /// type of the message.
    pub fn subject(&self) -> Option<(AddressFamily, u32)> {
        let [family, _, _, _, a, b, c, d] = *self.body.first_chunk()?;
        Some((family.into(), u32::from_ne_bytes([a, b, c, d])))
    }
}

/// Content of a message for which netlink-packet-route has no type.
pub(crate) struct Bytes(pub Vec<u8>);

impl Emitable for Bytes {
    fn buffer_len(&self) -> usize {
        self.0.len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.0);
    }
}
