//! Connections that the kernel tracks: forgotten where their translation is of yesterday.

use std::net::IpAddr;

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, ConntrackMessageType, IPTuple, ProtoTuple, Status, Tuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};

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

impl Connection {
    /// Forgets the connections to `destination`: their next packets are looked at as if they
    /// were the first. Says how many there were. As `conntrack -D --protonum … --orig-port-dst
    /// … --orig-dst …`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`]; a part of them may be forgotten then.
    pub fn forget(&self, destination: Destination) -> Result<usize, Error> {
        let is_doomed = |attributes: &[ConntrackAttribute]| {
            original(attributes).is_some_and(|tuple| destination.is_that_of(tuple))
        };
        self.forget_those(destination.list(), destination.version, is_doomed)
    }

    /// Forgets the connections that `source` began and nobody has answered, and that leave with
    /// its own address: their next packets are looked at as if they were the first. Says how many
    /// there were.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub fn forget_unanswered(&self, source: IpAddr) -> Result<usize, Error> {
        let is_doomed = |attributes: &[ConntrackAttribute]| {
            let settled = Status::SeenReply | Status::SrcNat;
            let status = attributes.iter().find_map(|attribute| match attribute {
                ConntrackAttribute::CtaStatus(status) => Some(*status),
                _ => None,
            });
            let from = original(attributes).and_then(source_of);
            from == Some(source) && status.is_some_and(|it| !it.intersects(settled))
        };
        let version = match source {
            IpAddr::V4(_) => IpVersion::V4,
            IpAddr::V6(_) => IpVersion::V6,
        };
        self.forget_those(list_from(source, version), version, is_doomed)
    }

    fn forget_those(
        &self,
        list: Message,
        version: IpVersion,
        is_doomed: impl Fn(&[ConntrackAttribute]) -> bool,
    ) -> Result<usize, Error> {
        let replies = self.socket.dump(list)?;
        let tracked = replies.iter().filter_map(|reply| match reply {
            Reply::Other(NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes))) => {
                original(attributes).filter(|_| is_doomed(attributes))
            }
            _ => None,
        });
        let mut forgotten = 0;
        for tuple in tracked {
            match self.socket.get(delete(tuple.to_vec(), version)) {
                // It ended by itself.
                Err(error) if error.is_not_found() => {}
                deleted => {
                    deleted?;
                    forgotten += 1;
                }
            }
        }
        Ok(forgotten)
    }
}

impl Destination {
    /// The kernel looks for protocol and port, so that a busy host's connections need not all
    /// pass through the socket (`ctnetlink_alloc_filter`, Linux 5.8).
    fn list(self) -> Message {
        let wanted = [
            DefaultNla::new(PROTOCOL, vec![self.protocol]),
            DefaultNla::new(PORT, self.port.to_be_bytes().to_vec()),
        ];
        let operation = format!("read connections to port {}", self.port);
        let filter = (nested(TRANSPORT, &wanted), BY_PROTOCOL | BY_PORT);
        message(operation, list(filter), self.version)
    }

    /// The filter knows no addresses, and a kernel without filter tells everything.
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

/// The kernel looks for the address, as it does for a port.
fn list_from(source: IpAddr, version: IpVersion) -> Message {
    let source = match source {
        IpAddr::V4(address) => DefaultNla::new(V4_SOURCE, address.octets().to_vec()),
        IpAddr::V6(address) => DefaultNla::new(V6_SOURCE, address.octets().to_vec()),
    };
    let filter = (nested(ADDRESSES, &[source]), BY_SOURCE);
    let operation = "read connections from an address".to_owned();
    message(operation, list(filter), version)
}

/// Those of which a part of the original tuple is as it is here.
fn list((part, by): (DefaultNla, u32)) -> ConntrackMessage {
    let flags = DefaultNla::new(ORIGINAL_FLAGS, by.to_ne_bytes().to_vec());
    ConntrackMessage::Other {
        message_type: ConntrackMessageType::Get.into(),
        attributes: vec![nested(ORIGINAL, &[part]), nested(FILTER, &[flags])],
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
    let message = NetfilterMessage::new(header, message);
    Message::new(operation, message).needing(["CONFIG_NF_CT_NETLINK"])
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

/// `CTA_IP_V4_SRC` and `CTA_IP_V6_SRC`
const V4_SOURCE: u16 = 1;
const V6_SOURCE: u16 = 3;

/// `CTA_PROTO_NUM` and `CTA_PROTO_DST_PORT`
const PROTOCOL: u16 = 1;
const PORT: u16 = 3;

/// `CTA_FILTER` and, in it, `CTA_FILTER_ORIG_FLAGS`
const FILTER: u16 = 25;
const ORIGINAL_FLAGS: u16 = 1;

/// `CTA_FILTER_F_CTA_IP_SRC`, `CTA_FILTER_F_CTA_PROTO_NUM` and `CTA_FILTER_F_CTA_PROTO_DST_PORT`
/// (`net/netfilter/nf_internals.h`)
const BY_SOURCE: u32 = 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_PORT: u32 = 1 << 5;
