//! Requests to the kernel, each with the words of its error message.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use nix::libc::{RTM_DELADDR, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE};

use crate::address::{self, Dad};
use crate::conf::{self, LinkLocalOrigin};
use crate::error::Error;
use crate::mac::MacAddress;
use crate::message::Message;
use crate::route::NewRoute;

/// A request, to be sent alone or with others by [`crate::Connection::execute`].
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) operation: String,
    pub(crate) message: NetlinkMessage<Message>,
    keeps: Option<fn(&Message) -> bool>,
}

/// A change to an existing link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkChange<'a> {
    /// Equivalent to `ip link set … up`.
    Up,
    /// Equivalent to `ip link set … down`.
    Down,
    /// Equivalent to `ip link set … promisc on`.
    Promiscuous,
    /// MTU in bytes. Equivalent to `ip link set … mtu`.
    Mtu(u32),
    /// Equivalent to `ip link set … address`. Setting the same address again makes the kernel
    /// announce the link's addresses if `arp_notify` and `ndisc_notify` are set
    /// (`NETDEV_CHANGEADDR` in net/ipv4/devinet.c and net/ipv6/ndisc.c).
    Mac(MacAddress),
    /// Up to 255 bytes. Equivalent to `ip link set … alias`.
    Alias(&'a str),
    /// Frames may leave by the port through which they came in. Equivalent to `bridge link set dev
    /// … hairpin on`.
    Hairpin,
    /// The port exchanges frames only with ports that are not isolated. Equivalent to `bridge link
    /// set dev … isolated on`.
    Isolated,
    /// Equivalent to `sysctl -w net.ipv4.conf.….arp_notify=1`.
    ArpNotify,
    /// Sets 0 or 1. Equivalent to `sysctl -w net.ipv4.conf.….route_localnet`.
    RouteLocalnet(u32),
    /// Equivalent to `ip link set … addrgenmode`.
    LinkLocal(LinkLocalOrigin),
    /// Each port of the bridge passes only the VLANs that it carries. Equivalent to `ip link set …
    /// type bridge vlan_filtering 1`.
    VlanFiltering,
}

impl Request {
    /// Returns whether the kernel answers with a list of messages.
    pub(crate) fn asks_for_list(&self) -> bool {
        self.message.header.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    pub(crate) fn unanswered(&self, reason: &'static str) -> Error {
        Error::Unanswered {
            operation: self.operation.clone(),
            reason,
        }
    }

    /// Changes the link called `name`.
    pub fn change_link(name: &str, change: &LinkChange<'_>) -> Self {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let words = change.apply(&mut message);
        let operation = format!("{words} {name}");
        // RTM_SETLINK accepts a port's attributes but does not apply them.
        Self::change(operation, Message::new(RTM_NEWLINK, &message), 0)
    }

    /// Adds `address` to the link with this index. The kernel refuses an address that the link has.
    /// Equivalent to `ip address add`.
    pub fn add_address(link: u32, address: IpNetwork, dad: Dad) -> Self {
        let message = Message::new(RTM_NEWADDR, &address::addition(link, address, dad));
        Self::change(
            format!("add address {address}"),
            message,
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Deletes `address` from the link with this index. Equivalent to `ip address delete`.
    pub fn delete_address(link: u32, address: IpNetwork) -> Self {
        let message = Message::new(RTM_DELADDR, &address::message(link, address));
        Self::change(format!("delete address {address}"), message, 0)
    }

    /// Adds a route beside existing ones to the same destination that differ in another property.
    /// Equivalent to `ip route append`.
    pub fn add_route(route: &NewRoute) -> Self {
        let via = |gateway: IpAddr| format!(" via {gateway}");
        let via = route.gateway.map(via).unwrap_or_default();
        let operation = format!("add route {}{via}", route.destination);
        let message = Message::new(RTM_NEWROUTE, &route.message());
        Self::change(operation, message, NLM_F_CREATE | NLM_F_APPEND)
    }

    pub(crate) fn change(operation: String, message: Message, flags: u16) -> Self {
        Self::new(operation, message, NLM_F_ACK | flags)
    }

    pub(crate) fn read_all(operation: &str, message: Message) -> Self {
        Self::new(operation.to_owned(), message, NLM_F_DUMP)
    }

    pub(crate) fn new(operation: String, message: Message, flags: u16) -> Self {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        Self {
            operation,
            message,
            keeps: None,
        }
    }

    /// Keeps only the answers that satisfy `keeps`, so a long list takes no more memory than a
    /// short one.
    pub(crate) fn keeping(self, keeps: fn(&Message) -> bool) -> Self {
        let keeps = Some(keeps);
        Self { keeps, ..self }
    }

    pub(crate) fn keeps(&self, answer: &Message) -> bool {
        self.keeps.is_none_or(|keeps| keeps(answer))
    }
}

impl LinkChange<'_> {
    /// Puts the change into `message` and returns its description.
    fn apply(&self, message: &mut LinkMessage) -> &'static str {
        let flags = match self {
            Self::Up => (LinkFlags::Up, LinkFlags::Up),
            Self::Down => (LinkFlags::empty(), LinkFlags::Up),
            Self::Promiscuous => (LinkFlags::Promisc, LinkFlags::Promisc),
            _ => (LinkFlags::empty(), LinkFlags::empty()),
        };
        (message.header.flags, message.header.change_mask) = flags;
        message.attributes.extend(self.attribute());
        self.words()
    }

    fn attribute(&self) -> Option<LinkAttribute> {
        Some(match self {
            Self::Up | Self::Down | Self::Promiscuous => return None,
            Self::Mtu(mtu) => LinkAttribute::Mtu(*mtu),
            Self::Mac(mac) => LinkAttribute::Address(mac.0.to_vec()),
            Self::Alias(alias) => LinkAttribute::IfAlias((*alias).to_owned()),
            Self::Hairpin => of_port(InfoBridgePort::HairpinMode(true)),
            Self::Isolated => of_port(InfoBridgePort::Isolated(true)),
            Self::ArpNotify => conf::arp_notify(),
            Self::RouteLocalnet(value) => conf::route_localnet(*value),
            Self::LinkLocal(origin) => origin.attribute(),
            Self::VlanFiltering => LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)])),
            ]),
        })
    }

    fn words(&self) -> &'static str {
        match self {
            Self::Up => "set up",
            Self::Down => "set down",
            Self::Promiscuous => "set promiscuous",
            Self::Mtu(_) => "set the MTU of",
            Self::Mac(_) => "set the MAC of",
            Self::Alias(_) => "set the alias of",
            Self::Hairpin => "set hairpin mode of port",
            Self::Isolated => "isolate port",
            Self::ArpNotify => "set arp_notify of",
            Self::RouteLocalnet(_) => "set route_localnet of",
            Self::LinkLocal(_) => "set addrgenmode of",
            Self::VlanFiltering => "filter VLANs on bridge",
        }
    }
}

fn of_port(attribute: InfoBridgePort) -> LinkAttribute {
    LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(vec![attribute])),
    ])
}
