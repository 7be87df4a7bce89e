//! Changes to existing links.

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netns::Netns;
use nix::libc::RTM_NEWLINK;

use crate::link::message;
use crate::{LinkLocalOrigin, MacAddress, NfCall, PortFlag, Request, conf};

/// A change to an existing link, except for its name: [`Request::rename_link`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkChange<'a> {
    /// Equivalent to `ip link set … up`.
    Up,
    /// Equivalent to `ip link set … down`.
    Down,
    /// Equivalent to `ip link set … promisc on`, or `off`.
    Promiscuous(bool),
    /// Equivalent to `ip link set … allmulticast on`, or `off`.
    AllMulticast(bool),
    /// Sets the length of the transmit queue in packets. Equivalent to `ip link set … txqueuelen`.
    TransmitQueue(u32),
    /// Sets the MTU in bytes. Equivalent to `ip link set … mtu`.
    Mtu(u32),
    /// Equivalent to `ip link set … address`. The kernel then announces the link's IPv4 addresses
    /// if `arp_notify` is set, and its IPv6 addresses if `ndisc_notify` is set, even if the link
    /// already has this MAC (`NETDEV_CHANGEADDR` in net/ipv4/devinet.c and net/ipv6/ndisc.c).
    Mac(MacAddress),
    /// Sets the alias, up to 255 bytes. Equivalent to `ip link set … alias`.
    Alias(&'a str),
    /// The index of the bridge, bond or VRF that the link joins; 0 to leave it. Equivalent to `ip
    /// link set … master`.
    Master(u32),
    /// Turns on a flag of a bridge port.
    Port(PortFlag),
    /// Equivalent to `sysctl -w net.ipv4.conf.….arp_notify=1`.
    ArpNotify,
    /// Sets `route_localnet` to 0 or 1. Equivalent to `sysctl -w net.ipv4.conf.….route_localnet`.
    RouteLocalnet(u32),
    /// Equivalent to `ip link set … addrgenmode`.
    LinkLocal(LinkLocalOrigin),
    /// Lets each port of the bridge pass only the VLANs that the port carries. Equivalent to `ip
    /// link set … type bridge vlan_filtering 1`.
    VlanFiltering,
    /// Turns on flags of a bridge. Equivalent to `ip link set … type bridge nf_call_iptables 1
    /// nf_call_ip6tables 1`.
    NfCall(NfCall),
}

impl Request {
    /// Returns a request that applies `change` to the link called `name`.
    pub fn change_link(name: &str, change: &LinkChange<'_>) -> Self {
        let (words, mut message) = change.message();
        let link = LinkAttribute::IfName(name.to_owned());
        message.attributes.push(link);
        Self::change(format!("{words} {name}"), RTM_NEWLINK, &message)
    }

    /// Returns a request that applies `change` to the link with this index. The kernel then does
    /// not have to look up a name.
    pub fn change_link_number(index: u32, change: &LinkChange<'_>) -> Self {
        let (words, mut message) = change.message();
        message.header.index = index;
        let operation = format!("{words} link number {index}");
        Self::change(operation, RTM_NEWLINK, &message)
    }

    /// Returns a request that moves the link with this index to another namespace, where it is down
    /// and called `name`, and has this alias. Equivalent to `ip link set … netns … name NAME alias
    /// ALIAS`.
    pub fn move_link(index: u32, namespace: &Netns, name: &str, alias: &str) -> Self {
        let attributes = vec![
            LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()),
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::IfAlias(alias.to_owned()),
        ];
        let operation = format!("move link number {index} to another namespace as {name}");
        Self::change(operation, RTM_NEWLINK, &message(index, attributes))
    }

    /// Returns a request that renames the link with this index, and then gives it an alias, if one is
    /// named. Linux before 6.2 refuses it if the link is up. Equivalent to `ip link set … name NAME alias
    /// ALIAS`.
    ///
    /// This is no [`LinkChange`], because [`Self::change_link`] identifies the link by the
    /// attribute that has the new name here (`IFLA_IFNAME`): the kernel would rename nothing,
    /// without an error.
    pub fn rename_link(index: u32, name: &str, alias: Option<&str>) -> Self {
        let mut attributes = vec![LinkAttribute::IfName(name.to_owned())];
        attributes.extend(alias.map(|it| LinkAttribute::IfAlias(it.to_owned())));
        let operation = format!("rename link number {index} to {name}");
        Self::change(operation, RTM_NEWLINK, &message(index, attributes))
    }
}

impl LinkChange<'_> {
    /// Returns words for error messages, and a message of type `RTM_NEWLINK` to which the caller
    /// adds the link's name or index. With the type `RTM_SETLINK`, the kernel would accept the
    /// attributes of a bridge port but not apply them.
    fn message(&self) -> (&'static str, LinkMessage) {
        let (words, attribute) = match self {
            Self::Up => return ("set up", flag(LinkFlags::Up, true)),
            Self::Down => return ("set down", flag(LinkFlags::Up, false)),
            Self::Promiscuous(on) => {
                return ("set promiscuous mode of", flag(LinkFlags::Promisc, *on));
            }
            Self::AllMulticast(on) => {
                return ("set all-multicast mode of", flag(LinkFlags::Allmulti, *on));
            }
            Self::TransmitQueue(packets) => (
                "set the transmit queue of",
                LinkAttribute::TxQueueLen(*packets),
            ),
            Self::Mtu(mtu) => ("set the MTU of", LinkAttribute::Mtu(*mtu)),
            Self::Master(index) => ("set the master of", LinkAttribute::Controller(*index)),
            Self::Mac(mac) => ("set the MAC of", LinkAttribute::Address(mac.0.to_vec())),
            Self::Alias(alias) => {
                let alias = LinkAttribute::IfAlias((*alias).to_owned());
                ("set the alias of", alias)
            }
            Self::Port(flag) => {
                let port = InfoPortData::BridgePort(vec![flag.attribute()]);
                let kind = LinkInfo::PortKind(InfoPortKind::Bridge);
                let info = vec![kind, LinkInfo::PortData(port)];
                (flag.words(), LinkAttribute::LinkInfo(info))
            }
            Self::ArpNotify => ("set arp_notify of", conf::arp_notify()),
            Self::RouteLocalnet(value) => ("set route_localnet of", conf::route_localnet(*value)),
            Self::LinkLocal(origin) => ("set addrgenmode of", origin.attribute()),
            Self::VlanFiltering => (
                "filter VLANs on bridge",
                of_bridge(vec![InfoBridge::VlanFiltering(true)]),
            ),
            Self::NfCall(flags) => ("set nf_call flags of bridge", of_bridge(flags.attributes())),
        };
        (words, message(0, vec![attribute]))
    }
}

fn of_bridge(attributes: Vec<InfoBridge>) -> LinkAttribute {
    let data = LinkInfo::Data(InfoData::Bridge(attributes));
    LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge), data])
}

fn flag(flag: LinkFlags, on: bool) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.flags = if on { flag } else { LinkFlags::empty() };
    message.header.change_mask = flag;
    message
}
