//! Removes connection tracking entries whose translation is stale.

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
use crate::ip_version::IpVersion;
use crate::message::Message;
use crate::reply::Reply;
use crate::tracked::{
    ADDRESSES, BY_DESTINATION, BY_DESTINATION_PORT, BY_PROTOCOL, BY_SOURCE, BY_SOURCE_PORT,
    DESTINATION_PORT, Direction, Half, PROTOCOL, SOURCE_PORT, TRANSPORT, destination_address,
    filter, nested, source_address, status, tuple, with_status,
};

/// Connections by the destination of their first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// IP version of their packets.
    pub version: IpVersion,
    /// Destination address; `None` for all.
    pub address: Option<IpAddr>,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
}

/// Connections to find among the tracked ones, by the kernel or by this process.
struct Search<'a> {
    /// Description for error messages.
    of: String,
    version: IpVersion,
    /// Attributes that the kernel compares.
    filter: Vec<DefaultNla>,
    /// The same condition for this process, plus what the filter cannot express.
    is_found: &'a dyn Fn(&[ConntrackAttribute]) -> bool,
}

impl Connection {
    /// Forgets the connections to `destinations`: the kernel treats their next packets as the first
    /// ones. A destination without an address stands for all addresses in `host`. Equivalent to
    /// `conntrack -D --protonum … --orig-port-dst … --orig-dst …`.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`]; some may have been forgotten by then.
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

    /// Reads one list for each version and protocol, whatever the number of ports.
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

    /// Forgets the connections to `destination` that the host translated (DNAT) to `target`.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub fn forget_translated(
        &self,
        destination: Destination,
        target: SocketAddr,
    ) -> Result<(), Error> {
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
            of: format!(
                "to port {} that were translated to {target}",
                destination.port
            ),
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

    /// Forgets the connections from `source` that have no answer yet and keep their source address.
    /// The kernel treats their next packets as the first ones.
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

    /// Lets the kernel walk all tracked connections and delete those that the filter matches.
    /// Before Linux 6.11 it mistakes a filter for an incomplete tuple (EINVAL).
    fn forget_found(&self, search: &Search<'_>) -> Result<(), Error> {
        let message = search.message(ConntrackMessageType::Delete);
        self.socket.execute(message)
    }

    /// Lists connections, for which the kernel locks each bucket of its table, empty or not.
    /// Deletes each connection as soon as it is read, so a flood cannot fill this process's memory.
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

/// Returns a destination for each address. Returns `None` if `host` contains a network or the
/// kernel would have to walk its table more than [`MOST_DELETIONS`] times.
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
    /// Returns the filter's attributes, so the kernel does not send all connections of a busy host
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

    /// Returns the same destination at any address.
    fn anywhere(self) -> Self {
        Self {
            address: None,
            ..self
        }
    }

    /// Compares again, because a kernel without the filter lists all connections.
    fn is_that_of(self, original: Half) -> bool {
        let is_there = self.address.is_none() || self.address == original.destination;
        let port = (original.protocol, original.destination_port);
        is_there && port == (Some(self.protocol), Some(self.port))
    }

    /// Compares like [`Self::is_that_of`]; without an address, only connections to `host` match.
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

/// Limit of separate deletions. A deletion takes 0.1 ms, a list about 10 ms in the kernel's table
/// of 262,144 buckets.
const MOST_DELETIONS: usize = 64;
