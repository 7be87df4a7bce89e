//! Connections that the kernel tracks: forgotten where their translation is of yesterday.

use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;
use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, ConntrackMessageType, Status, Tuple,
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
use crate::tracked::{
    ADDRESSES, BY_DESTINATION, BY_DESTINATION_PORT, BY_PROTOCOL, BY_SOURCE, BY_SOURCE_PORT,
    DESTINATION_PORT, Direction, Half, PROTOCOL, SOURCE_PORT, TRANSPORT, destination_address,
    filter, nested, source_address, status, tuple, with_status,
};

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

/// Connections that the kernel, or this process, looks for among those that it tracks.
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
    /// Forgets the connections to `destinations`: the kernel looks at their next packets as if they
    /// were the first. A destination without address stands for each address in `host`. As
    /// `conntrack -D --protonum … --orig-port-dst … --orig-dst …`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`]; a part of them may be forgotten then.
    pub fn forget(&self, destinations: &[Destination], host: &[IpNetwork]) -> Result<(), Error> {
        let Some(single) = single_addresses(destinations, host) else {
            return self.forget_listed_to(destinations, host);
        };
        for destination in &single {
            let deleted = self.forget_found(&destination.search(&|_| true));
            match deleted {
                Err(error) if error.errno() == Some(Errno::EINVAL) => {
                    return self.forget_listed_to(destinations, host);
                }
                deleted => deleted?,
            }
        }
        Ok(())
    }

    /// One list for each of the versions and protocols, however many ports there are.
    fn forget_listed_to(
        &self,
        destinations: &[Destination],
        host: &[IpNetwork],
    ) -> Result<(), Error> {
        let mut lists: Vec<_> = destinations.iter().map(|it| it.anywhere()).collect();
        lists.sort_unstable_by_key(|it| (it.version, it.protocol, it.port));
        lists.dedup();
        for list in lists.chunk_by(|a, b| (a.version, a.protocol) == (b.version, b.protocol)) {
            let is_meant = |attributes: &[ConntrackAttribute]| {
                let original = Half::of(attributes, Direction::Original);
                destinations.iter().any(|it| it.is_of(original, host))
            };
            match list {
                [one] => self.forget_listed(&one.search(&is_meant))?,
                [one, ..] => self.forget_listed(&one.search_of_protocol(&is_meant))?,
                [] => {}
            }
        }
        Ok(())
    }

    /// Forgets those of the connections to `destination` that were led to `target`.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub fn forget_led(&self, destination: Destination, target: SocketAddr) -> Result<(), Error> {
        let (parts, by) = destination.parts();
        let answers = [
            nested(ADDRESSES, &[source_address(target.ip())]),
            nested(
                TRANSPORT,
                &[
                    DefaultNla::new(PROTOCOL, vec![destination.protocol]),
                    DefaultNla::new(SOURCE_PORT, target.port().to_be_bytes().to_vec()),
                ],
            ),
        ];
        let by_source = BY_SOURCE | BY_PROTOCOL | BY_SOURCE_PORT;
        let mut filter = filter(&[
            (Direction::Original, parts, by),
            (Direction::Reply, answers.into(), by_source),
        ]);
        filter.extend(with_status(Status::DstNat, Status::DstNat));
        self.forget_those(&Search {
            of: format!("to port {} that were led to {target}", destination.port),
            version: destination.version,
            filter,
            is_found: &|attributes| {
                let answers = Half::of(attributes, Direction::Reply);
                destination.is_that_of(Half::of(attributes, Direction::Original))
                    && (answers.source, answers.source_port)
                        == (Some(target.ip()), Some(target.port()))
                    && status(attributes).is_some_and(|it| it.contains(Status::DstNat))
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
        let mut filter = filter(&[(Direction::Original, vec![addresses], BY_SOURCE)]);
        filter.extend(with_status(Status::empty(), settled));
        self.forget_those(&Search {
            of: format!("from {source}"),
            version: IpVersion::of(source),
            filter,
            is_found: &|attributes| {
                Half::of(attributes, Direction::Original).source == Some(source)
                    && status(attributes).is_some_and(|it| !it.intersects(settled))
            },
        })
    }

    fn forget_those(&self, search: &Search<'_>) -> Result<(), Error> {
        match self.forget_found(search) {
            Err(error) if error.errno() == Some(Errno::EINVAL) => self.forget_listed(search),
            deleted => deleted,
        }
    }

    /// The kernel goes through all that it tracks, and deletes what the filter finds. Before 6.11 it
    /// takes a filter for a half of a connection's name (EINVAL).
    fn forget_found(&self, search: &Search<'_>) -> Result<(), Error> {
        let message = search.message(ConntrackMessageType::Delete);
        self.socket.get(message).map(drop)
    }

    /// The kernel locks each bucket of its table, empty or not. A flood must not fill this process's
    /// memory, so each connection is deleted as soon as it is read.
    fn forget_listed(&self, search: &Search<'_>) -> Result<(), Error> {
        let message = search.message(ConntrackMessageType::Get);
        self.socket.dump_each(message, |reply| {
            let Reply::Other(NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes))) =
                reply
            else {
                return None;
            };
            let tuple = tuple(&attributes, Direction::Original);
            let found = tuple.filter(|_| (search.is_found)(&attributes))?;
            Some(delete(found.to_vec(), search.version))
        })
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

/// A destination for each address, where the kernel is to go through all that it tracks only a few
/// times.
fn single_addresses(destinations: &[Destination], host: &[IpNetwork]) -> Option<Vec<Destination>> {
    let mut single = Vec::new();
    for destination in destinations {
        let of_version = |it: &&IpNetwork| IpVersion::of(it.ip()) == destination.version;
        match destination.address {
            Some(_) => single.push(*destination),
            None => {
                for network in host.iter().filter(of_version) {
                    let is_single = network.prefix() == if network.is_ipv4() { 32 } else { 128 };
                    let address = Some(network.ip()).filter(|_| is_single)?;
                    single.push(Destination {
                        address: Some(address),
                        ..*destination
                    });
                }
            }
        }
    }
    Some(single).filter(|it| it.len() <= MOST_DELETIONS)
}

impl Destination {
    /// Of a busy host's connections not all need pass through the socket
    /// (`ctnetlink_alloc_filter`, Linux 5.8).
    fn parts(self) -> (Vec<DefaultNla>, u32) {
        let wanted = [
            DefaultNla::new(PROTOCOL, vec![self.protocol]),
            DefaultNla::new(DESTINATION_PORT, self.port.to_be_bytes().to_vec()),
        ];
        let mut parts = vec![nested(TRANSPORT, &wanted)];
        let mut by = BY_PROTOCOL | BY_DESTINATION_PORT;
        if let Some(address) = self.address {
            parts.push(nested(ADDRESSES, &[destination_address(address)]));
            by |= BY_DESTINATION;
        }
        (parts, by)
    }

    fn search(self, is_found: &dyn Fn(&[ConntrackAttribute]) -> bool) -> Search<'_> {
        let (parts, by) = self.parts();
        Search {
            of: format!("to port {}", self.port),
            version: self.version,
            filter: filter(&[(Direction::Original, parts, by)]),
            is_found,
        }
    }

    fn search_of_protocol(self, is_found: &dyn Fn(&[ConntrackAttribute]) -> bool) -> Search<'_> {
        let (parts, _) = self.parts();
        Search {
            of: format!("of protocol {}", self.protocol),
            filter: filter(&[(Direction::Original, parts, BY_PROTOCOL)]),
            ..self.search(is_found)
        }
    }

    /// Those of any address.
    fn anywhere(self) -> Self {
        Self {
            address: None,
            ..self
        }
    }

    /// A kernel without filter lists all connections.
    fn is_that_of(self, original: Half) -> bool {
        let is_there = self.address.is_none() || self.address == original.destination;
        let port = (original.protocol, original.destination_port);
        is_there && port == (Some(self.protocol), Some(self.port))
    }

    /// As [`Self::is_that_of`], where no address stands for those in `host`.
    fn is_of(self, original: Half, host: &[IpNetwork]) -> bool {
        let is_in_host = |address| host.iter().any(|it| it.contains(address));
        self.is_that_of(original)
            && (self.address.is_some() || original.destination.is_some_and(is_in_host))
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

/// A deletion takes 0.1 ms, a list some 10 in the kernel's table of 262,144 buckets.
const MOST_DELETIONS: usize = 64;
