//! Netlink messages: a type, flags, and bytes that the receiver parses if it expects that type.
//!
//! This crate does not use netlink-packet-route's enum of all rtnetlink messages
//! (`RouteNetlinkMessage`). With that enum, each executable would also contain the parsers of
//! messages that this suite does not need, such as rules and prefixes.

use netlink_packet_core::{Emitable, NLM_F_MULTIPART, NLM_F_REQUEST, Parseable};
use netlink_packet_route::AddressFamily;

/// A netlink message without the fields of its header that the socket sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The type, such as `RTM_NEWLINK`.
    pub kind: u16,
    /// `NLM_F_…`; each message to the kernel also has `NLM_F_REQUEST`.
    pub flags: u16,
    /// The bytes after the header.
    pub body: Vec<u8>,
}

impl Message {
    pub(crate) fn new(kind: u16, content: &impl Emitable) -> Self {
        let mut body = vec![0; content.buffer_len()];
        content.emit(&mut body);
        Self {
            kind,
            flags: 0,
            body,
        }
    }

    /// Appends the message to `datagram`, with this sequence number.
    pub(crate) fn append_to(&self, datagram: &mut Vec<u8>, number: u32) {
        let length = u32::try_from(HEADER + self.body.len()).unwrap_or(u32::MAX);
        datagram.extend(length.to_ne_bytes());
        datagram.extend(self.kind.to_ne_bytes());
        datagram.extend((NLM_F_REQUEST | self.flags).to_ne_bytes());
        datagram.extend(number.to_ne_bytes());
        // The sender's port may be 0, because the kernel knows the sender.
        datagram.extend([0; 4]);
        datagram.extend(&self.body);
        datagram.resize(datagram.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// Returns whether the message is part of a list (`NLM_F_MULTIPART`).
    pub(crate) fn is_of_list(&self) -> bool {
        self.flags & NLM_F_MULTIPART != 0
    }

    /// Parses the content if the message is of this type. Returns `None` for another type and for
    /// content that does not parse.
    pub(crate) fn read<M: Parseable<[u8]>>(&self, kind: u16) -> Option<M> {
        if self.kind != kind {
            return None;
        }
        M::parse(&self.body).ok()
    }

    /// Returns the prefix length of the destination in a route message (`struct rtmsg`). Returns
    /// `None` if the message is too short. The caller has to check that this is a route message.
    pub(crate) fn destination_length(&self) -> Option<u8> {
        self.body.get(1).copied()
    }

    /// Returns the address family and the index of the link that the message is about. Every
    /// message about links or addresses contains both at the same place (`struct ifinfomsg`,
    /// `struct ifaddrmsg`). Returns `None` if the message is too short. The caller has to check the
    /// type of the message.
    pub(crate) fn subject(&self) -> Option<(AddressFamily, u32)> {
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

/// Returns the values of the attributes that are this variant of their enum.
macro_rules! values {
    ($attributes:expr, $variant:path) => {
        $attributes.into_iter().filter_map(|it| match it {
            $variant(value) => Some(value),
            _ => None,
        })
    };
}
pub(crate) use values;

/// Size of `struct nlmsghdr`, and the alignment of messages and attributes, in bytes.
pub(crate) const HEADER: usize = 16;
pub(crate) const ALIGNMENT: usize = 4;
