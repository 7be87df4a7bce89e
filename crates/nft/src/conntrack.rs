//! Deletes conntrack entries, so that the current rules decide about the connections' next packets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;
use netlink::IpVersion;
use nix::errno::Errno;

use crate::attributes::Attributes;
use crate::raw::{DELETE_CONNECTIONS, GET_CONNECTIONS, RawMessage};
use crate::tracked::{
    DESTINATION_TRANSLATED, Direction, Part, SEEN_REPLY, SOURCE_TRANSLATED, Status, destination,
    destination_port, filter,
};
use crate::{Connection, Error, HostPort, Message};

/// A search for tracked connections. The kernel's filter compares `parts` and `status`. Older
/// kernels ignore the filter when they list connections, so [`Self::includes`] compares each listed
/// connection again.
struct Search<'a> {
    /// The connections, for error messages: `to port 80`.
    of: String,
    version: IpVersion,
    parts: Vec<Part>,
    status: Option<Status>,
    /// An additional condition that the kernel's filter cannot express. Only
    /// [`Connection::forget_listed`] checks it.
    is_meant: &'a dyn Fn(&RawMessage) -> bool,
}

impl Connection {
    /// Deletes the conntrack entries of connections to `destinations`. The kernel then treats the
    /// next packet of such a connection as its first one, and translates the packet by the current
    /// rules. A destination without an address stands for all addresses in `host`. Equivalent to
    /// `conntrack -D --protonum … --orig-port-dst … --orig-dst …`.
    ///
    /// # Errors
    /// [`Error::Refused`]; some entries may have been deleted before the error.
    pub fn delete_tracked(
        &self,
        destinations: &[HostPort],
        host: &[IpNetwork],
    ) -> Result<(), Error> {
        let searches = single_addresses(destinations, host);
        let searches = searches.map(|it| it.into_iter().map(HostPort::search).collect());
        self.forget_all(searches, destinations, |index, connection| {
            let mut meant = destinations.get(index).into_iter();
            meant.any(|it| it.is_of(connection, host))
        })
    }

    /// Lets the kernel delete the entries that match one of `searches`. If `searches` is `None` or
    /// longer than [`MOST_DELETIONS`], or the kernel does not support the filter, deletes the
    /// entries of the connections to `destinations` for which `is_meant` returns true. `is_meant`
    /// gets the index of the destination, and a connection to its port.
    fn forget_all(
        &self,
        searches: Option<Vec<Search<'_>>>,
        destinations: &[HostPort],
        is_meant: impl Fn(usize, &RawMessage) -> bool,
    ) -> Result<(), Error> {
        let Some(searches) = searches.filter(|it| it.len() <= MOST_DELETIONS) else {
            return self.forget_listed_to(destinations, is_meant);
        };
        let mut searches = searches.iter();
        match searches.try_for_each(|it| self.forget_found(it)) {
            Err(error) if error.errno() == Some(Errno::EINVAL) => {
                self.forget_listed_to(destinations, is_meant)
            }
            forgotten => forgotten,
        }
    }

    /// Deletes the entries of the connections to `destinations` for which `is_meant` returns true.
    /// Lists the connections once for each pair of IP version and protocol, even if there are many
    /// ports, and compares each connection only with the destinations that have its port.
    fn forget_listed_to(
        &self,
        destinations: &[HostPort],
        is_meant: impl Fn(usize, &RawMessage) -> bool,
    ) -> Result<(), Error> {
        let mut by_port = HashMap::<u16, Vec<usize>>::new();
        for (index, destination) in destinations.iter().enumerate() {
            by_port.entry(destination.port).or_default().push(index);
        }
        let is_meant = |connection: &RawMessage| {
            let same_port = destination_port(connection).and_then(|it| by_port.get(&it));
            same_port.is_some_and(|it| it.iter().any(|index| is_meant(*index, connection)))
        };
        let lists = destinations.iter().map(|it| it.of_every_address());
        let mut lists: Vec<_> = lists.collect();
        lists.sort_unstable_by_key(|it| (it.version, it.protocol, it.port));
        lists.dedup();
        for list in lists.chunk_by(|a, b| (a.version, a.protocol) == (b.version, b.protocol)) {
            let search = match list {
                [one] => one.search(),
                [one, ..] => Search {
                    of: format!("of protocol {}", one.protocol),
                    parts: vec![Direction::Original.protocol(one.protocol)],
                    ..one.search()
                },
                [] => continue,
            };
            self.forget_listed(&Search {
                is_meant: &is_meant,
                ..search
            })?;
        }
        Ok(())
    }

    /// Deletes the conntrack entries of connections that the host translated (DNAT). Each of
    /// `translations` has the former destination and the new one.
    ///
    /// # Errors
    /// As [`Self::delete_tracked`].
    pub fn delete_translated(&self, translations: &[(HostPort, SocketAddr)]) -> Result<(), Error> {
        let searches = || translations.iter().map(|it| translated(it.0, it.1));
        let destinations: Vec<_> = translations.iter().map(|it| it.0).collect();
        self.forget_all(Some(searches().collect()), &destinations, |index, it| {
            let mut meant = translations.get(index).into_iter();
            meant.any(|(from, to)| translated(*from, *to).includes(it))
        })
    }

    /// Deletes the conntrack entries of connections from `source` that have no answer yet and whose
    /// source address the host does not translate. Such a connection may have begun while a rule
    /// for masquerading was missing. The kernel then treats the next packet of the connection as
    /// its first one, and translates the packet by the current rules.
    ///
    /// # Errors
    /// As [`Self::delete_tracked`].
    pub fn forget_unanswered(&self, source: IpAddr) -> Result<(), Error> {
        self.forget_those(&Search {
            of: format!("from {source}"),
            version: IpVersion::of(source),
            parts: vec![Direction::Original.source(source)],
            status: Some(Status {
                status: 0,
                mask: SEEN_REPLY | SOURCE_TRANSLATED,
            }),
            is_meant: &|_| true,
        })
    }

    /// Deletes the conntrack entries that match `search`.
    fn forget_those(&self, search: &Search<'_>) -> Result<(), Error> {
        match self.forget_found(search) {
            Err(error) if error.errno() == Some(Errno::EINVAL) => self.forget_listed(search),
            deleted => deleted,
        }
    }

    /// Lets the kernel walk all tracked connections and delete those that the filter of `search`
    /// matches. A kernel before Linux 6.11 mistakes the filter for an incomplete tuple and refuses
    /// the request (EINVAL). The callers then list the connections instead
    /// ([`Self::forget_listed`]).
    fn forget_found(&self, search: &Search<'_>) -> Result<(), Error> {
        self.execute(&search.message("delete", DELETE_CONNECTIONS))
    }

    /// Lists the connections, and deletes the entry of each one that matches `search`, as soon as
    /// this process has read it. So a flood of connections cannot fill this process's memory. A
    /// list is slow even if the kernel supports the filter, because the kernel locks each bucket of
    /// its table, even an empty one.
    fn forget_listed(&self, search: &Search<'_>) -> Result<(), Error> {
        let list = search.message("read", GET_CONNECTIONS);
        self.dump_each(&list, |connection| {
            let original = Direction::Original as u16;
            let tuple = Attributes::new().and(connection.value(original)?);
            search.includes(&connection).then(|| {
                let tuple = Attributes::new().nest(original, &tuple);
                let family = search.version.number();
                let raw = RawMessage::new(DELETE_CONNECTIONS, family, tuple);
                Message::new("delete a connection".to_owned(), raw)
            })
        })
    }
}

impl Search<'_> {
    fn message(&self, verb: &str, kind: u16) -> Message {
        let filter = filter(&self.parts, self.status);
        let raw = RawMessage::new(kind, self.version.number(), filter);
        Message::new(format!("{verb} connections {}", self.of), raw)
    }

    /// Returns whether `connection` matches the search. Compares all parts, because a kernel that
    /// does not support the filter lists all connections.
    fn includes(&self, connection: &RawMessage) -> bool {
        let mut parts = self.parts.iter();
        parts.all(|it| it.is_of(connection))
            && self.status.is_none_or(|it| it.is_of(connection))
            && (self.is_meant)(connection)
    }
}

/// Returns a search for connections to `destination` that the host translated (DNAT) to `target`.
fn translated(destination: HostPort, target: SocketAddr) -> Search<'static> {
    let mut parts = destination.parts();
    parts.extend([
        Direction::Reply.source(target.ip()),
        Direction::Reply.protocol(destination.protocol),
        Direction::Reply.source_port(target.port()),
    ]);
    let port = destination.port;
    Search {
        of: format!("to port {port} that were translated to {target}"),
        parts,
        status: Some(Status {
            status: DESTINATION_TRANSLATED,
            mask: DESTINATION_TRANSLATED,
        }),
        ..destination.search()
    }
}

/// Returns `destinations` with an address in each: replaces a destination without an address by one
/// destination for each address of its IP version in `host`. Returns `None` if one of these entries
/// of `host` is a network of several addresses, because the kernel's filter compares only single
/// ones.
fn single_addresses(destinations: &[HostPort], host: &[IpNetwork]) -> Option<Vec<HostPort>> {
    let mut single = Vec::new();
    for destination in destinations {
        let of_version = |it: &&IpNetwork| IpVersion::of(it.ip()) == destination.version;
        match destination.address {
            Some(_) => single.push(*destination),
            None => {
                for network in host.iter().filter(of_version) {
                    let address = network.ip();
                    let is_single = *network == IpNetwork::from(address);
                    single.push(HostPort {
                        address: Some(is_single.then_some(address)?),
                        ..*destination
                    });
                }
            }
        }
    }
    Some(single)
}

impl HostPort {
    /// Returns the conditions of the kernel's filter for connections to this port: the protocol,
    /// the port, and the address unless it is `None`. With a filter, the kernel does not list all
    /// connections of a busy host (`ctnetlink_alloc_filter`, Linux 5.8).
    fn parts(self) -> Vec<Part> {
        let original = Direction::Original;
        let port = [
            original.protocol(self.protocol),
            original.destination_port(self.port),
        ];
        let address = self.address.map(|it| original.destination(it));
        port.into_iter().chain(address).collect()
    }

    fn search(self) -> Search<'static> {
        Search {
            of: format!("to port {}", self.port),
            version: self.version,
            parts: self.parts(),
            status: None,
            is_meant: &|_| true,
        }
    }

    /// Returns whether `connection` is a connection to this port. A port without an address stands
    /// for all addresses in `host`.
    fn is_of(self, connection: &RawMessage, host: &[IpNetwork]) -> bool {
        let is_in_host = |address| host.iter().any(|it| it.contains(address));
        self.search().includes(connection)
            && (self.address.is_some() || destination(connection).is_some_and(is_in_host))
    }
}

/// Maximum number of requests that delete connections by a filter. For each request, the kernel
/// walks its whole table in 0.1 ms. For more destinations, this module reads a list of all
/// connections instead, which takes about 10 ms with a table of 262,144 buckets.
const MOST_DELETIONS: usize = 64;
