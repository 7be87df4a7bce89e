//! Veth pairs, created in their final namespaces.

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};
use netns::Netns;
use nix::libc::RTM_NEWLINK;

use crate::connection::Connection;
use crate::error::Error;
use crate::link::{Link, LinkKind};
use crate::link_change::LinkChange;
use crate::links::{link_named, read_link};
use crate::mac::MacAddress;
use crate::message::Message;
use crate::request::Request;

/// One end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VethEnd<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its MAC: udev rewrites one that the kernel chose.
    pub mac: MacAddress,
}

/// A pair of a host end and a container end, both down at first.
#[derive(Debug, Clone, Copy)]
pub struct VethPair<'a> {
    /// The end on the host.
    pub host: VethEnd<'a>,
    /// The end in the sandbox.
    pub container: VethEnd<'a>,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Index of the bridge that the host's end joins, if it joins one.
    pub master: Option<u32>,
    /// Alias of the host's end: its owner.
    pub alias: &'a str,
    /// Namespace in which the container end is created; moving it there would take 15 ms or more.
    pub sandbox: &'a Netns,
}

impl Connection {
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
        let replies = self.transport.execute(&requests)?;
        let mut links = replies.iter().flatten().filter_map(Link::from_answer);
        match (links.next(), links.next()) {
            (Some(port), master) if master.is_some() == pair.master.is_some() => Ok((port, master)),
            _ => Err(Error::Unanswered {
                operation,
                reason: "no link in the answer",
            }),
        }
    }

    /// Returns the end, in this connection's namespace, of the pair that `link` in `namespace`
    /// belongs to. Returns `None` if there is none.
    ///
    /// A sandbox can create links with any index and name, so its own link proves nothing. The end
    /// here must lead back to that very namespace.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn other_end(&self, link: &Link, namespace: &Netns) -> Result<Option<Link>, Error> {
        let Some(index) = link.peer.filter(|_| link.kind == LinkKind::Veth) else {
            return Ok(None);
        };
        let peer = match self.link_by_index(index) {
            Err(error) if error.is_not_found() => return Ok(None),
            peer => peer?,
        };
        let leads_back = peer.kind == LinkKind::Veth
            && peer.peer == Some(link.index)
            && peer.peer_namespace.is_some()
            && peer.peer_namespace == self.namespace_id(namespace)?;
        Ok(Some(peer).filter(|_| leads_back))
    }
}

impl VethPair<'_> {
    /// Returns one message for both ends and a second one for the alias, which the kernel ignores
    /// in the first.
    fn requests(&self) -> Vec<Request> {
        let create = Request::change(
            format!(
                "create veth {} with peer {}",
                self.host.name, self.container.name
            ),
            Message::new(RTM_NEWLINK, &self.message()),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        let alias = Request::change_link(self.host.name, &LinkChange::Alias(self.alias));
        vec![create, alias]
    }

    fn message(&self) -> LinkMessage {
        let mut peer = LinkMessage::default();
        peer.attributes = self.attributes(self.container);
        let sandbox = self.sandbox.as_fd().as_raw_fd();
        peer.attributes.push(LinkAttribute::NetNsFd(sandbox));
        let mut message = LinkMessage::default();
        message.attributes = self.attributes(self.host);
        let master = self.master.map(LinkAttribute::Controller);
        message.attributes.extend(master);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        message
    }

    fn attributes(&self, end: VethEnd<'_>) -> Vec<LinkAttribute> {
        vec![
            LinkAttribute::IfName(end.name.to_owned()),
            LinkAttribute::Mtu(self.mtu),
            LinkAttribute::Address(end.mac.0.to_vec()),
        ]
    }
}
