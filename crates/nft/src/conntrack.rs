//! Connections that the kernel tracks: forgotten where their translation is of yesterday.

use std::net::IpAddr;

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, ConntrackMessageType, IPTuple, ProtoTuple, Tuple,
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
        let replies = self.socket.dump(destination.list())?;
        let tracked = replies.iter().filter_map(|reply| match reply {
            Reply::Other(NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes))) => {
                original(attributes).filter(|tuple| destination.is_that_of(tuple))
            }
            _ => None,
        });
        let mut forgotten = 0;
        for tuple in tracked {
            match self.socket.get(destination.delete(tuple.to_vec())) {
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
        let by = BY_PROTOCOL | BY_PORT;
        let flags = DefaultNla::new(ORIGINAL_FLAGS, by.to_ne_bytes().to_vec());
        let message = ConntrackMessage::Other {
            message_type: ConntrackMessageType::Get.into(),
            attributes: vec![
                nested(ORIGINAL, &[nested(TRANSPORT, &wanted)]),
                nested(FILTER, &[flags]),
            ],
        };
        self.message(format!("read connections to port {}", self.port), message)
    }

    fn delete(self, tuple: Vec<Tuple>) -> Message {
        let attributes = vec![ConntrackAttribute::CtaTupleOrig(tuple)];
        let operation = format!("forget a connection to port {}", self.port);
        self.message(operation, ConntrackMessage::Delete(attributes))
    }

    fn message(self, operation: String, message: ConntrackMessage) -> Message {
        let family = match self.version {
            IpVersion::V4 => NetfilterProtoFamily::IPv4,
            IpVersion::V6 => NetfilterProtoFamily::IPv6,
        };
        let header = NetfilterHeader::new(family, 0, 0);
        let message = NetfilterMessage::new(header, message);
        Message::new(operation, message).needing(["CONFIG_NF_CT_NETLINK"])
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

/// `CTA_TUPLE_ORIG` and, in it, `CTA_TUPLE_PROTO`
const ORIGINAL: u16 = 1;
const TRANSPORT: u16 = 2;

/// `CTA_PROTO_NUM` and `CTA_PROTO_DST_PORT`
const PROTOCOL: u16 = 1;
const PORT: u16 = 3;

/// `CTA_FILTER` and, in it, `CTA_FILTER_ORIG_FLAGS`
const FILTER: u16 = 25;
const ORIGINAL_FLAGS: u16 = 1;

/// `CTA_FILTER_F_CTA_PROTO_NUM` and `CTA_FILTER_F_CTA_PROTO_DST_PORT`
/// (`net/netfilter/nf_internals.h`)
const BY_PROTOCOL: u32 = 1 << 3;
const BY_PORT: u32 = 1 << 5;
