//! A connection to the kernel of one namespace.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{RouteHeader, RouteMessage, RouteType};
use netns::Netns;
use nix::libc::{
    RTM_DELLINK, RTM_GETLINK, RTM_GETNSID, RTM_GETROUTE, RTM_NEWLINK, RTM_NEWNSID, RTM_NEWROUTE,
};

use crate::error::Error;
use crate::link::Link;
use crate::mac::MacAddress;
use crate::message::Message;
use crate::request::{LinkChange, Request};
use crate::route::{DiscardingRoute, Route};
use crate::transport::Transport;
use crate::veth::VethPair;
use crate::vlan::PortVlans;

/// A netlink socket for requests; it belongs to the namespace in which it was opened.
pub struct Connection {
    pub(crate) transport: Transport,
}

impl Connection {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let transport = Transport::open(&[])?;
        Ok(Self { transport })
    }

    /// Opens a socket in `namespace`; the calling thread stays in its own namespace.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Namespace`].
    pub fn open_in(namespace: &Netns) -> Result<Self, Error> {
        namespace.run(Self::open)?
    }

    /// Opens the namespace at `path` and a socket in it. Returns `None` if the namespace no longer
    /// exists.
    ///
    /// # Errors
    /// As [`Self::open_in`].
    pub fn open_if_present(path: &Path) -> Result<Option<(Netns, Self)>, Error> {
        let open = |namespace: Netns| {
            let connection = Self::open_in(&namespace)?;
            Ok((namespace, connection))
        };
        match Netns::open(path).map_err(Error::from).and_then(open) {
            Ok(opened) => Ok(Some(opened)),
            Err(Error::Namespace(error)) if error.is_no_namespace() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns this namespace's number for `other`, as in [`Link::peer_namespace`].
    /// Returns `None` if no number is assigned. Equivalent to `ip netns list-id`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn namespace_id(&self, other: &Netns) -> Result<Option<i32>, Error> {
        let mut message = NsidMessage::default();
        let file = other.as_fd().as_raw_fd();
        let file = u32::try_from(file).unwrap_or(u32::MAX);
        message.attributes.push(NsidAttribute::Fd(file));
        let message = Message::new(RTM_GETNSID, &message);
        let request = Request::new("read a namespace's number".to_owned(), message, 0);
        let replies = self.transport.execute(vec![request])?;
        let replies = replies.iter().flatten();
        let mut replies = replies.filter_map(|reply| reply.read::<NsidMessage>(RTM_NEWNSID));
        Ok(replies.find_map(|reply| reply.attributes.iter().find_map(nsid)))
    }

    /// Sends all `requests` back to back and waits until the kernel has carried out or refused
    /// each.
    ///
    /// # Errors
    /// The first refusal. The kernel carries out the other requests all the same: they are not a
    /// transaction.
    pub fn execute(&self, requests: Vec<Request>) -> Result<(), Error> {
        self.transport.execute(requests).map(drop)
    }

    /// Returns the link called `name`. Equivalent to `ip link show`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_not_found`] holds if the link does not exist.
    pub fn link(&self, name: &str) -> Result<Link, Error> {
        let request = link_named(name);
        let operation = request.operation.clone();
        first_link(operation, &self.transport.execute(vec![request])?)
    }

    /// Returns the link called `name`, or `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Self::link`], except for a link that does not exist.
    pub fn find_link(&self, name: &str) -> Result<Option<Link>, Error> {
        match self.link(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the link with this index.
    ///
    /// # Errors
    /// As [`Self::link`].
    pub fn link_by_index(&self, index: u32) -> Result<Link, Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.one_link(format!("read link number {index}"), message)
    }

    /// Applies `changes` to the link called `name` and returns the changed link.
    ///
    /// # Errors
    /// [`Error::Refused`]; the kernel carries out the other changes all the same.
    pub fn change_link(&self, name: &str, changes: &[LinkChange<'_>]) -> Result<Link, Error> {
        let changes = changes.iter();
        let mut requests: Vec<_> = changes.map(|it| Request::change_link(name, it)).collect();
        requests.push(link_named(name));
        first_link(
            format!("read link {name}"),
            &self.transport.execute(requests)?,
        )
    }

    /// Returns all links. Equivalent to `ip link show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn links(&self) -> Result<Vec<Link>, Error> {
        self.links_like(LinkMessage::default())
    }

    /// Returns all links that are not ports of a bridge or bond; empty on kernels before 5.15.
    /// Equivalent to `ip link show nomaster`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn links_without_master(&self) -> Result<Vec<Link>, Error> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::Controller(NONE));
        self.links_like(request)
    }

    /// Returns all ports of the bridge with this index. Equivalent to `ip link show master`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ports(&self, bridge: u32) -> Result<Vec<Link>, Error> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::Controller(bridge));
        let mut ports = self.links_like(request)?;
        ports.retain(|port| port.master == Some(bridge));
        Ok(ports)
    }

    /// Returns the number of ports of the bridge with this index. The kernel's reply is much
    /// shorter than for [`Self::ports`]. Equivalent to `bridge link show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn port_count(&self, bridge: u32) -> Result<usize, Error> {
        let mut request = LinkMessage::default();
        request.header.interface_family = AddressFamily::Bridge;
        let reply = self.all("count ports", Message::new(RTM_GETLINK, &request))?;
        let ports = reply.iter().filter_map(Link::from_answer);
        let ports = ports.filter(|it| it.master == Some(bridge) && it.index != bridge);
        Ok(ports.count())
    }

    /// Returns the VLANs of the port, or of the bridge itself, with this index. Equivalent to
    /// `bridge vlan show dev`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn port_vlans(&self, port: u32) -> Result<Vec<PortVlans>, Error> {
        let mut request = LinkMessage::default();
        request.header.interface_family = AddressFamily::Bridge;
        let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]);
        request.attributes.push(mask);
        let reply = self.all("read VLANs", Message::new(RTM_GETLINK, &request))?;
        let ports = reply
            .iter()
            .filter_map(|it| it.read::<LinkMessage>(RTM_NEWLINK));
        let port = ports.filter(|it| it.header.index == port);
        Ok(port.flat_map(|it| PortVlans::from_message(&it)).collect())
    }

    /// Creates a bridge without ports; it is down. Equivalent to `ip link add NAME address MAC mtu
    /// MTU type bridge`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_already_exists`] holds if the name is taken.
    pub fn add_bridge(&self, name: &str, mac: MacAddress, mtu: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ];
        let message = Message::new(RTM_NEWLINK, &message);
        let operation = format!("create bridge {name}");
        self.execute(vec![Request::change(
            operation,
            message,
            NLM_F_CREATE | NLM_F_EXCL,
        )])
    }

    /// Creates both ends of a pair in their namespaces, down, then carries out `changes`. Returns
    /// the host's end and its bridge after the changes.
    ///
    /// Equivalent to `ip link add … master … type veth peer … netns …`.
    ///
    /// # Errors
    /// [`Error::Refused`], for example if a name is taken or the bridge is full.
    pub fn add_veth(
        &self,
        pair: &VethPair<'_>,
        changes: Vec<Request>,
    ) -> Result<(Link, Option<Link>), Error> {
        let operation = format!("read link {}", pair.host.name);
        let mut requests = pair.requests();
        requests.extend(changes);
        requests.push(link_named(pair.host.name));
        requests.extend(pair.master.map(|index| {
            let mut master = LinkMessage::default();
            master.header.index = index;
            read_link(operation.clone(), master)
        }));
        let replies = self.transport.execute(requests)?;
        let mut links = replies.iter().flatten().filter_map(Link::from_answer);
        match (links.next(), links.next()) {
            (Some(port), master) if master.is_some() == pair.master.is_some() => Ok((port, master)),
            _ => Err(Error::Unanswered {
                operation,
                reason: "no link in the answer",
            }),
        }
    }

    /// Deletes the link and waits until the kernel has freed it. Equivalent to `ip link delete`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_not_found`] holds if the link does not exist.
    pub fn delete_link(&self, link: &Link) -> Result<(), Error> {
        self.delete_index(link.index, format!("delete link {}", link.name))
    }

    pub(crate) fn delete_index(&self, index: u32, operation: String) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let message = Message::new(RTM_DELLINK, &message);
        self.execute(vec![Request::change(operation, message, 0)])
    }

    /// Returns the unicast routes of both families and all tables. Equivalent to `ip route show
    /// table all`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn routes(&self) -> Result<Vec<Route>, Error> {
        self.routes_of_kind(RouteType::Unicast, Route::from_message)
    }

    /// Returns the routes of both families and all tables that make the kernel drop packets. As `ip
    /// route show table all type blackhole`, and likewise for the other types.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn discarding_routes(&self) -> Result<Vec<DiscardingRoute>, Error> {
        self.routes_of_kind(RouteType::Unspec, DiscardingRoute::from_message)
    }

    /// Returns the routes that `read` accepts: the kernel may return routes of other kinds too.
    fn routes_of_kind<T>(
        &self,
        kind: RouteType,
        read: fn(&RouteMessage) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let families = [AddressFamily::Inet, AddressFamily::Inet6];
        let requests = families.map(|address_family| {
            let mut message = RouteMessage::default();
            message.header = RouteHeader {
                address_family,
                kind,
                ..RouteHeader::default()
            };
            Request::read_all("read routes", Message::new(RTM_GETROUTE, &message))
        });
        let replies = self.transport.execute(requests.into())?;
        let routes = replies.iter().flatten();
        let routes = routes.filter_map(|it| it.read(RTM_NEWROUTE));
        Ok(routes.filter_map(|it| read(&it)).collect())
    }

    fn links_like(&self, request: LinkMessage) -> Result<Vec<Link>, Error> {
        let request = Message::new(RTM_GETLINK, &without_statistics(request));
        let reply = self.all("read links", request)?;
        Ok(reply.iter().filter_map(Link::from_answer).collect())
    }

    pub(crate) fn all(&self, operation: &str, message: Message) -> Result<Vec<Message>, Error> {
        self.answers(Request::read_all(operation, message))
    }

    /// Returns all of the kernel's answers to one request.
    pub(crate) fn answers(&self, request: Request) -> Result<Vec<Message>, Error> {
        let replies = self.transport.execute(vec![request])?;
        Ok(replies.into_iter().flatten().collect())
    }

    fn one_link(&self, operation: String, message: LinkMessage) -> Result<Link, Error> {
        let request = read_link(operation.clone(), message);
        first_link(operation, &self.transport.execute(vec![request])?)
    }
}

pub(crate) fn first_link(operation: String, replies: &[Vec<Message>]) -> Result<Link, Error> {
    let found = replies.iter().flatten().find_map(Link::from_answer);
    found.ok_or(Error::Unanswered {
        operation,
        reason: "no link in the answer",
    })
}

/// Returns the request of [`Connection::link`].
pub(crate) fn link_named(name: &str) -> Request {
    let mut message = LinkMessage::default();
    let attribute = LinkAttribute::IfName(name.to_owned());
    message.attributes.push(attribute);
    read_link(format!("read link {name}"), message)
}

fn read_link(operation: String, message: LinkMessage) -> Request {
    let message = Message::new(RTM_GETLINK, &without_statistics(message));
    Request::new(operation, message, 0)
}

/// Leaves the counters out of the reply: they make up most of it and no caller uses them.
fn without_statistics(mut message: LinkMessage) -> LinkMessage {
    let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    message.attributes.push(mask);
    message
}

/// Value that selects links without a master (`link_master_filtered` in net/core/rtnetlink.c).
const NONE: u32 = u32::MAX;

/// Returns the number; `None` for -1, which is `NETNSA_NSID_NOT_ASSIGNED`.
fn nsid(attribute: &NsidAttribute) -> Option<i32> {
    match attribute {
        NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
        _ => None,
    }
}
