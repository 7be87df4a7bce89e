//! Connections that the kernel tracks: forgotten where their translation is of yesterday.

use std::net::IpAddr;

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, ConntrackMessageType, IPTuple, ProtoTuple, Status, Tuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use nix::errno::Errno;

use crate::connection::Connection;
use crate::error::Error;
use crate::message::Message;
use crate::reply::Reply;
use crate::rule::IpVersion;

/// Connections by where their first packet went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The version of their packets.
    pub version: IpVersion,
    /// The address; `None` for all.
    pub address: Option<IpAddr>,
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// What the kernel, or we, look for among the connections that it tracks.
struct Search<'a> {
    /// In words.
    of: String,
    version: IpVersion,
    /// What the kernel compares.
    filter: Vec<DefaultNla>,
    /// The same, and what the filter does not know.
    is_found: &'a dyn Fn(&[ConntrackAttribute]) -> bool,
}

impl Connection {
    /// Forgets the connections to `destination`: their next packets are looked at as if they
    /// were the first. As `conntrack -D --protonum … --orig-port-dst … --orig-dst …`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`]; a part of them may be forgotten then.
    pub fn forget(&self, destination: Destination) -> Result<(), Error> {
        self.forget_those(&Search {
            of: format!("to port {}", destination.port),
            version: destination.version,
            filter: destination.filter(),
            is_found: &|attributes| {
                original(attributes).is_some_and(|tuple| destination.is_that_of(tuple))
            },
        })
    }

    /// Forgets the connections that `source` began and nobody has answered, and that leave with
    /// its own address: their next packets are looked at as if they were the first.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub fn forget_unanswered(&self, source: IpAddr) -> Result<(), Error> {
        let settled = Status::SeenReply | Status::SrcNat;
        let addresses = nested(ADDRESSES, &[source_address(source)]);
        let mut filter = filter(&[addresses], BY_SOURCE);
        filter.extend([
            DefaultNla::new(STATUS, 0_u32.to_be_bytes().to_vec()),
            DefaultNla::new(STATUS_MASK, settled.bits().to_be_bytes().to_vec()),
        ]);
        self.forget_those(&Search {
            of: format!("from {source}"),
            version: IpVersion::of(source),
            filter,
            is_found: &|attributes| {
                let status = attributes.iter().find_map(|attribute| match attribute {
                    ConntrackAttribute::CtaStatus(status) => Some(*status),
                    _ => None,
                });
                let from = original(attributes).and_then(source_of);
                from == Some(source) && status.is_some_and(|it| !it.intersects(settled))
            },
        })
    }

    /// The kernel goes through all that it tracks. From 6.11 on it deletes what the filter finds as
    /// it comes by; before, it takes a filter for a half of a connection's name, and what was to be
    /// deleted is listed first, for which it locks each of its buckets, empty or not.
    fn forget_those(&self, search: &Search<'_>) -> Result<(), Error> {
        match self
            .socket
            .get(search.message(ConntrackMessageType::Delete))
        {
            Err(error) if error.errno() == Some(Errno::EINVAL) => self.forget_listed(search),
            deleted => deleted.map(drop),
        }
    }

    fn forget_listed(&self, search: &Search<'_>) -> Result<(), Error> {
        let replies = self
            .socket
            .dump(search.message(ConntrackMessageType::Get))?;
        let tracked = replies.iter().filter_map(|reply| match reply {
            Reply::Other(NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes))) => {
                original(attributes).filter(|_| (search.is_found)(attributes))
            }
            _ => None,
        });
        for tuple in tracked {
            match self.socket.get(delete(tuple.to_vec(), search.version)) {
                // It ended by itself.
                Err(error) if error.is_not_found() => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }
}

impl Search<'_> {
    fn message(&self, message_type: ConntrackMessageType) -> Message {
        let verb = match message_type {
            ConntrackMessageType::Delete => "forget",
            _ => "read",
        };
        let body = ConntrackMessage::Other {
            message_type: message_type.into(),
            attributes: self.filter.clone(),
        };
        message(
            format!("{verb} connections {}", self.of),
            body,
            self.version,
        )
    }
}

impl Destination {
    /// Of a busy host's connections not all need pass through the socket
    /// (`ctnetlink_alloc_filter`, Linux 5.8).
    fn filter(self) -> Vec<DefaultNla> {
        let wanted = [
            DefaultNla::new(PROTOCOL, vec![self.protocol]),
            DefaultNla::new(PORT, self.port.to_be_bytes().to_vec()),
        ];
        let mut parts = vec![nested(TRANSPORT, &wanted)];
        let mut by = BY_PROTOCOL | BY_PORT;
        if let Some(address) = self.address {
            parts.push(nested(ADDRESSES, &[destination_address(address)]));
            by |= BY_DESTINATION;
        }
        filter(&parts, by)
    }

    /// A kernel without filter tells everything.
    fn is_that_of(self, tuple: &[Tuple]) -> bool {
        let mut address = None;
        let (mut protocol, mut port) = (None, None);
        for part in tuple {
            match part {
                Tuple::Ip(parts) => parts.iter().for_each(|part| {
                    if let IPTuple::DestinationAddress(found) = part {
                        address = Some(*found);
                    }
                }),
                Tuple::Proto(parts) => parts.iter().for_each(|part| match part {
                    ProtoTuple::Protocol(found) => protocol = Some(u8::from(*found)),
                    ProtoTuple::DestinationPort(found) => port = Some(*found),
                    _ => {}
                }),
                _ => {}
            }
        }
        let is_there = self.address.is_none() || self.address == address;
        is_there && (protocol, port) == (Some(self.protocol), Some(self.port))
    }
}

/// Those of which these parts of the original tuple are as they are here.
fn filter(parts: &[DefaultNla], by: u32) -> Vec<DefaultNla> {
    let flags = DefaultNla::new(ORIGINAL_FLAGS, by.to_ne_bytes().to_vec());
    vec![nested(ORIGINAL, parts), nested(FILTER, &[flags])]
}

fn source_address(address: IpAddr) -> DefaultNla {
    match address {
        IpAddr::V4(address) => DefaultNla::new(V4_SOURCE, address.octets().to_vec()),
        IpAddr::V6(address) => DefaultNla::new(V6_SOURCE, address.octets().to_vec()),
    }
}

fn destination_address(address: IpAddr) -> DefaultNla {
    match address {
        IpAddr::V4(address) => DefaultNla::new(V4_DESTINATION, address.octets().to_vec()),
        IpAddr::V6(address) => DefaultNla::new(V6_DESTINATION, address.octets().to_vec()),
    }
}

fn delete(tuple: Vec<Tuple>, version: IpVersion) -> Message {
    let attributes = vec![ConntrackAttribute::CtaTupleOrig(tuple)];
    let operation = "forget a connection".to_owned();
    message(operation, ConntrackMessage::Delete(attributes), version)
}

fn message(operation: String, message: ConntrackMessage, version: IpVersion) -> Message {
    let family = match version {
        IpVersion::V4 => NetfilterProtoFamily::IPv4,
        IpVersion::V6 => NetfilterProtoFamily::IPv6,
    };
    let header = NetfilterHeader::new(family, 0, 0);
    Message::new(operation, NetfilterMessage::new(header, message))
}

fn source_of(tuple: &[Tuple]) -> Option<IpAddr> {
    let parts = tuple.iter().filter_map(|part| match part {
        Tuple::Ip(parts) => Some(parts),
        _ => None,
    });
    parts.flatten().find_map(|part| match part {
        IPTuple::SourceAddress(address) => Some(*address),
        _ => None,
    })
}

fn original(attributes: &[ConntrackAttribute]) -> Option<&[Tuple]> {
    attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(tuple) => Some(tuple.as_slice()),
        _ => None,
    })
}

fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

/// `CTA_TUPLE_ORIG` and, in it, `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`
const ORIGINAL: u16 = 1;
const ADDRESSES: u16 = 1;
const TRANSPORT: u16 = 2;

/// `CTA_IP_V4_SRC` and the three after it
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;

/// `CTA_PROTO_NUM` and `CTA_PROTO_DST_PORT`
const PROTOCOL: u16 = 1;
const PORT: u16 = 3;

/// `CTA_FILTER` and, in it, `CTA_FILTER_ORIG_FLAGS`
const FILTER: u16 = 25;
const ORIGINAL_FLAGS: u16 = 1;

/// `CTA_STATUS` and `CTA_STATUS_MASK`
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;

/// `CTA_FILTER_F_CTA_IP_SRC`, `…_CTA_IP_DST`, `…_CTA_PROTO_NUM` and `…_CTA_PROTO_DST_PORT`
/// (`net/netfilter/nf_internals.h`)
const BY_SOURCE: u32 = 1;
const BY_DESTINATION: u32 = 1 << 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_PORT: u32 = 1 << 5;
