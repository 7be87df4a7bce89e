//! Links that imitate links of another namespace, for dry runs.

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};
use netns::Netns;
use nix::libc::RTM_NEWLINK;

use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::message::Message;
use crate::request::Request;

/// Kind of the imitation.
#[derive(Debug, Clone, Copy)]
pub enum StandIn<'a> {
    /// A bridge without ports.
    Bridge,
    /// One end of a pair; the other end has this name and is in this namespace.
    Pair(&'a Netns, &'a str),
}

impl Connection {
    /// Creates a link with the index, name, MAC, MTU and master of `link`, which is in another
    /// namespace. Programs that go by any of these take it for that link. It is down at first.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn add_stand_in(&self, link: &Link, stand_in: StandIn<'_>) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(link.name.clone()));
        attributes.push(LinkAttribute::Mtu(link.mtu.clamp(LEAST_MTU, MOST_MTU)));
        let mac = link.mac.filter(|_| link.mac != Some(UNSET));
        attributes.extend(mac.map(|it| LinkAttribute::Address(it.0.to_vec())));
        attributes.extend(link.master.map(LinkAttribute::Controller));
        attributes.push(LinkAttribute::LinkInfo(stand_in.info()));
        let operation = format!("create a link in the place of {}", link.name);
        let message = Message::new(RTM_NEWLINK, &message);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.execute(vec![Request::change(operation, message, flags)])
    }
}

impl StandIn<'_> {
    fn info(self) -> Vec<LinkInfo> {
        let (namespace, name) = match self {
            Self::Bridge => return vec![LinkInfo::Kind(InfoKind::Bridge)],
            Self::Pair(namespace, name) => (namespace.as_fd().as_raw_fd(), name),
        };
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::NetNsFd(namespace),
        ];
        let peer = InfoData::Veth(InfoVeth::Peer(peer));
        vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(peer)]
    }
}

/// MAC of a link without one.
const UNSET: crate::MacAddress = crate::MacAddress([0; 6]);

/// MTU limits of a pair in bytes; IPv6 needs the lower one.
const LEAST_MTU: u32 = 1280;
const MOST_MTU: u32 = 65_535;
