//! What goes over the socket: a kind, and bytes that are taken apart by whoever waits for that kind.
//!
//! The enum of all of rtnetlink's messages, which netlink-packet-route has, would bring the code along
//! by which neighbours, rules and statistics are read.

use std::convert::Infallible;

use netlink_packet_core::{
    Emitable, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, Parseable,
};
use netlink_packet_route::AddressFamily;

/// A message without its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    kind: u16,
    body: Vec<u8>,
}

impl Message {
    /// One of this kind, such as `RTM_NEWLINK`.
    pub fn new(kind: u16, content: &impl Emitable) -> Self {
        let mut body = vec![0; content.buffer_len()];
        content.emit(&mut body);
        Self { kind, body }
    }

    /// What it says, if it is of this kind. What is no such content is no answer.
    pub fn read<M: Parseable<[u8]>>(&self, kind: u16) -> Option<M> {
        if self.kind != kind {
            return None;
        }
        M::parse(&self.body).ok()
    }

    /// What kind of message it is.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// The length of the destination's prefix, of a message about a route (`struct rtmsg`).
    pub fn destination_length(&self) -> Option<u8> {
        self.body.get(1).copied()
    }

    /// The family and the index of the link, by which every message about links or addresses begins
    /// (`struct ifinfomsg`, `struct ifaddrmsg`).
    pub fn subject(&self) -> Option<(AddressFamily, u32)> {
        let [family, _, _, _, a, b, c, d] = *self.body.first_chunk()?;
        Some((family.into(), u32::from_ne_bytes([a, b, c, d])))
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}
