//! Reads, creates and deletes links.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage};
use nix::libc::{RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK};

use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::link_change::LinkChange;
use crate::mac::MacAddress;
use crate::message::Message;
use crate::request::Request;

impl Connection {
    /// Returns the link called `name`. Equivalent to `ip link show`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_not_found`] holds if the link does not exist.
    pub fn link(&self, name: &str) -> Result<Link, Error> {
        let request = link_named(name);
        let operation = request.operation.clone();
        first_link(operation, &self.transport.execute(&[request])?)
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

    /// Returns the existing links among `names`, in that order, in one batch of requests.
    ///
    /// # Errors
    /// [`Error::Refused`], except for a link that does not exist.
    pub fn links_named<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<Link>, Error> {
        let requests: Vec<_> = names.into_iter().map(link_named).collect();
        let mut links = Vec::new();
        for outcome in self.transport.outcomes(&requests)? {
            match outcome {
                Err(error) if error.is_not_found() => {}
                answers => links.extend(answers?.iter().filter_map(Link::from_answer)),
            }
        }
        Ok(links)
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
            &self.transport.execute(&requests)?,
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

    fn links_like(&self, request: LinkMessage) -> Result<Vec<Link>, Error> {
        let request = Message::new(RTM_GETLINK, &without_statistics(request));
        let reply = self.all("read links", request)?;
        Ok(reply.iter().filter_map(Link::from_answer).collect())
    }

    fn one_link(&self, operation: String, message: LinkMessage) -> Result<Link, Error> {
        let request = read_link(operation.clone(), message);
        first_link(operation, &self.transport.execute(&[request])?)
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

pub(crate) fn read_link(operation: String, message: LinkMessage) -> Request {
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
