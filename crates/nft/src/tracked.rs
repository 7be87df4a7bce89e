//! The kernel's description of a tracked connection, and the parts of it that a filter compares.

use std::net::IpAddr;

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, IPTuple, ProtoTuple, Status, Tuple};

/// Direction of a connection: `CTA_TUPLE_ORIG` or `CTA_TUPLE_REPLY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The client's packets, with addresses before translation.
    Original = 1,
    /// The server's packets, with addresses before the translation is undone.
    Reply = 2,
}

/// Source and destination of the packets of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Half {
    pub source: Option<IpAddr>,
    pub destination: Option<IpAddr>,
    pub protocol: Option<u8>,
    pub source_port: Option<u16>,
    pub destination_port: Option<u16>,
}

impl Half {
    pub fn of(attributes: &[ConntrackAttribute], direction: Direction) -> Self {
        let mut half = Self::default();
        for part in tuple(attributes, direction).unwrap_or_default() {
            match part {
                Tuple::Ip(parts) => parts.iter().for_each(|part| half.has_address(part)),
                Tuple::Proto(parts) => parts.iter().for_each(|part| half.has_port(part)),
                _ => {}
            }
        }
        half
    }

    fn has_address(&mut self, told: &IPTuple) {
        match told {
            IPTuple::SourceAddress(address) => self.source = Some(*address),
            IPTuple::DestinationAddress(address) => self.destination = Some(*address),
            _ => {}
        }
    }

    fn has_port(&mut self, told: &ProtoTuple) {
        match told {
            ProtoTuple::Protocol(protocol) => self.protocol = Some(u8::from(*protocol)),
            ProtoTuple::SourcePort(port) => self.source_port = Some(*port),
            ProtoTuple::DestinationPort(port) => self.destination_port = Some(*port),
            _ => {}
        }
    }
}

/// Returns a filter for connections with these parts, each compared by its flags.
pub(crate) fn filter(halves: &[(Direction, Vec<DefaultNla>, u32)]) -> Vec<DefaultNla> {
    let tuples = halves
        .iter()
        .map(|(direction, parts, _)| nested(*direction as u16, parts));
    let flags = halves
        .iter()
        .map(|(direction, _, by)| DefaultNla::new(*direction as u16, by.to_ne_bytes().to_vec()));
    let flags = flags.collect::<Vec<_>>();
    tuples.chain([nested(FILTER, &flags)]).collect()
}

/// Returns a filter for connections whose status bits in `mask` equal those of `status`.
pub(crate) fn with_status(status: Status, mask: Status) -> [DefaultNla; 2] {
    [(STATUS, status), (STATUS_MASK, mask)]
        .map(|(kind, bits)| DefaultNla::new(kind, bits.bits().to_be_bytes().to_vec()))
}

pub(crate) fn source_address(address: IpAddr) -> DefaultNla {
    match address {
        IpAddr::V4(address) => DefaultNla::new(V4_SOURCE, address.octets().to_vec()),
        IpAddr::V6(address) => DefaultNla::new(V6_SOURCE, address.octets().to_vec()),
    }
}

pub(crate) fn destination_address(address: IpAddr) -> DefaultNla {
    match address {
        IpAddr::V4(address) => DefaultNla::new(V4_DESTINATION, address.octets().to_vec()),
        IpAddr::V6(address) => DefaultNla::new(V6_DESTINATION, address.octets().to_vec()),
    }
}

pub(crate) fn tuple(attributes: &[ConntrackAttribute], direction: Direction) -> Option<&[Tuple]> {
    attributes
        .iter()
        .find_map(|attribute| match (attribute, direction) {
            (ConntrackAttribute::CtaTupleOrig(tuple), Direction::Original)
            | (ConntrackAttribute::CtaTupleReply(tuple), Direction::Reply) => {
                Some(tuple.as_slice())
            }
            _ => None,
        })
}

pub(crate) fn status(attributes: &[ConntrackAttribute]) -> Option<Status> {
    attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaStatus(status) => Some(*status),
        _ => None,
    })
}

pub(crate) fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

/// In `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`: `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`
pub(crate) const ADDRESSES: u16 = 1;
pub(crate) const TRANSPORT: u16 = 2;

/// `CTA_IP_V4_SRC` and the three after it
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;

/// `CTA_PROTO_NUM` and the two after it
pub(crate) const PROTOCOL: u16 = 1;
pub(crate) const SOURCE_PORT: u16 = 2;
pub(crate) const DESTINATION_PORT: u16 = 3;

/// `CTA_FILTER`; in it `CTA_FILTER_ORIG_FLAGS` and `CTA_FILTER_REPLY_FLAGS` have the tuples'
/// numbers
const FILTER: u16 = 25;

/// `CTA_STATUS` and `CTA_STATUS_MASK`
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;

/// `CTA_FILTER_F_CTA_IP_SRC`, `…_CTA_IP_DST`, `…_CTA_PROTO_NUM`, `…_CTA_PROTO_SRC_PORT` and
/// `…_CTA_PROTO_DST_PORT` (`net/netfilter/nf_internals.h`)
pub(crate) const BY_SOURCE: u32 = 1;
pub(crate) const BY_DESTINATION: u32 = 1 << 1;
pub(crate) const BY_PROTOCOL: u32 = 1 << 3;
pub(crate) const BY_SOURCE_PORT: u32 = 1 << 4;
pub(crate) const BY_DESTINATION_PORT: u32 = 1 << 5;
