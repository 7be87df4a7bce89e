//! Filters for tracked connections. A filter compares parts of the kernel's description of a
//! connection, such as its addresses.

use std::net::IpAddr;

use netlink::octets;

use crate::attributes::{Attributes, value};
use crate::raw::RawMessage;
use crate::register::address;

/// Direction of a connection: `CTA_TUPLE_ORIG` or `CTA_TUPLE_REPLY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Packets of the client, with their addresses before translation.
    Original = 1,
    /// Packets of the server, with the addresses that they have before the kernel translates them
    /// back.
    Reply = 2,
}

/// One address, port or protocol in one direction of a connection, encoded as the kernel reports
/// it.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    direction: Direction,
    /// The attribute that contains the part: [`ADDRESSES`] or [`TRANSPORT`].
    group: u16,
    kind: u16,
    value: Vec<u8>,
    /// The bit that makes the kernel's filter compare the part: `CTA_FILTER_F_…`
    /// (`net/netfilter/nf_internals.h`).
    flag: u32,
}

/// Condition on a connection's status bits: the bits that `mask` selects equal those in `status`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    pub status: u32,
    pub mask: u32,
}

impl Direction {
    pub fn source(self, address: IpAddr) -> Part {
        self.address([V4_SOURCE, V6_SOURCE], address, 1)
    }

    pub fn destination(self, address: IpAddr) -> Part {
        self.address([V4_DESTINATION, V6_DESTINATION], address, 1 << 1)
    }

    pub fn protocol(self, number: u8) -> Part {
        self.transport(PROTOCOL, &[number], 1 << 3)
    }

    pub fn source_port(self, port: u16) -> Part {
        self.transport(SOURCE_PORT, &port.to_be_bytes(), 1 << 4)
    }

    pub fn destination_port(self, port: u16) -> Part {
        self.transport(DESTINATION_PORT, &port.to_be_bytes(), 1 << 5)
    }

    fn address(self, [v4, v6]: [u16; 2], address: IpAddr, flag: u32) -> Part {
        Part {
            group: ADDRESSES,
            kind: if address.is_ipv4() { v4 } else { v6 },
            ..self.transport(0, &octets(address), flag)
        }
    }

    fn transport(self, kind: u16, value: &[u8], flag: u32) -> Part {
        Part {
            direction: self,
            group: TRANSPORT,
            kind,
            value: value.to_vec(),
            flag,
        }
    }
}

impl Part {
    /// Returns whether `connection`, the kernel's description of a connection, contains this part
    /// with this value.
    pub fn is_of(&self, connection: &RawMessage) -> bool {
        let tuple = connection.value(self.direction as u16);
        let found = tuple.and_then(|it| value(value(it, self.group)?, self.kind));
        found == Some(&self.value)
    }
}

impl Status {
    /// Returns whether the status bits of `connection` satisfy the condition.
    pub fn is_of(self, connection: &RawMessage) -> bool {
        connection.number(STATUS) & u64::from(self.mask) == u64::from(self.status)
    }
}

/// Returns the destination address of the client's packets, before any translation. Returns `None`
/// if `connection`, the kernel's description, contains no such address.
pub(crate) fn destination(connection: &RawMessage) -> Option<IpAddr> {
    let addresses = value(connection.value(Direction::Original as u16)?, ADDRESSES)?;
    let v4 = value(addresses, V4_DESTINATION);
    address(v4.or_else(|| value(addresses, V6_DESTINATION))?)
}

/// Returns the destination port of the client's packets, before any translation. Returns `None` if
/// `connection`, the kernel's description, contains no such port.
pub(crate) fn destination_port(connection: &RawMessage) -> Option<u16> {
    let transport = value(connection.value(Direction::Original as u16)?, TRANSPORT)?;
    let port = value(transport, DESTINATION_PORT)?.try_into().ok()?;
    Some(u16::from_be_bytes(port))
}

/// Returns the netlink attributes of a filter for connections with all `parts` and this `status`. A
/// kernel that supports filters (`ctnetlink_alloc_filter`, Linux 5.8) then sends only these
/// connections, not all connections of a busy host.
pub(crate) fn filter(parts: &[Part], status: Option<Status>) -> Attributes {
    let (mut tuples, mut flags) = (Attributes::new(), Attributes::new());
    for direction in [Direction::Original, Direction::Reply] {
        let parts = || parts.iter().filter(|it| it.direction == direction);
        let mut tuple = Attributes::new();
        for group in [ADDRESSES, TRANSPORT] {
            let parts = parts().filter(|it| it.group == group);
            let values = parts.fold(Attributes::new(), |all, it| all.bytes(it.kind, &it.value));
            if !values.is_empty() {
                tuple = tuple.nest(group, &values);
            }
        }
        let by = parts().fold(0, |by, it| by | it.flag);
        if by != 0 {
            tuples = tuples.nest(direction as u16, &tuple);
            flags = flags.bytes(direction as u16, &by.to_ne_bytes());
        }
    }
    let filter = tuples.nest(FILTER, &flags);
    match status {
        Some(Status { status, mask }) => filter.number(STATUS, status).number(STATUS_MASK, mask),
        None => filter,
    }
}

/// Bits of a connection's status, in this order: `IPS_SEEN_REPLY`, `IPS_SRC_NAT` and `IPS_DST_NAT`
/// (`include/uapi/linux/netfilter/nf_conntrack_common.h`).
pub(crate) const SEEN_REPLY: u32 = 1 << 1;
pub(crate) const SOURCE_TRANSLATED: u32 = 1 << 4;
pub(crate) const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// Attributes inside `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`, in this order: `CTA_TUPLE_IP` and
/// `CTA_TUPLE_PROTO`.
const ADDRESSES: u16 = 1;
const TRANSPORT: u16 = 2;

/// Attributes inside `CTA_TUPLE_IP`, in this order: `CTA_IP_V4_SRC`, `CTA_IP_V4_DST`,
/// `CTA_IP_V6_SRC` and `CTA_IP_V6_DST`.
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;

/// Attributes inside `CTA_TUPLE_PROTO`, in this order: `CTA_PROTO_NUM`, `CTA_PROTO_SRC_PORT` and
/// `CTA_PROTO_DST_PORT`.
const PROTOCOL: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// The attribute with the bits of `Part::flag`: `CTA_FILTER`. Its attributes
/// `CTA_FILTER_ORIG_FLAGS` and `CTA_FILTER_REPLY_FLAGS` have the same numbers as `CTA_TUPLE_ORIG`
/// and `CTA_TUPLE_REPLY`.
const FILTER: u16 = 25;

/// Attributes with a connection's status bits, and with the mask of a filter, in this order:
/// `CTA_STATUS` and `CTA_STATUS_MASK`.
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;
