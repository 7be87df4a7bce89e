//! Changes to existing links.

use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use nix::libc::RTM_NEWLINK;

use crate::conf::{self, LinkLocalOrigin};
use crate::mac::MacAddress;
use crate::message::Message;
use crate::port_flag::PortFlag;
use crate::request::Request;

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
    /// Turns a flag of a bridge's port on.
    Port(PortFlag),
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
            Self::Port(flag) => LinkAttribute::LinkInfo(vec![
                LinkInfo::PortKind(InfoPortKind::Bridge),
                LinkInfo::PortData(InfoPortData::BridgePort(vec![flag.attribute()])),
            ]),
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
            Self::Port(flag) => flag.words(),
            Self::ArpNotify => "set arp_notify of",
            Self::RouteLocalnet(_) => "set route_localnet of",
            Self::LinkLocal(_) => "set addrgenmode of",
            Self::VlanFiltering => "filter VLANs on bridge",
        }
    }
}
