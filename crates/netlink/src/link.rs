//! Links as the kernel describes them.

use std::fmt;

use netlink_packet_route::link::{
    BridgePortState, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVlan,
    LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, State,
};
use nix::libc::RTM_NEWLINK;

use crate::{Ipv6, MacAddress, Message, PortFlag, conf};

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Number that identifies the link in requests; unique in its namespace.
    pub index: u32,
    /// Name; unique in its namespace.
    pub name: String,
    /// Kind of link.
    pub kind: LinkKind,
    /// Ethernet address, if the link has one.
    pub mac: Option<MacAddress>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The link is administratively up.
    pub is_up: bool,
    /// The link is operationally up: it passes traffic (RFC 2863).
    pub is_operational: bool,
    /// State of the link's other end, such as a switch or a veth peer.
    pub carrier: Carrier,
    /// The administrator or a program switched promiscuous mode on.
    pub is_promiscuous: bool,
    /// Multicast packets that the link receives.
    pub multicast: Multicast,
    /// Length of the transmit queue in packets.
    pub transmit_queue: u32,
    /// Index of the bridge or bond of which the link is a port.
    pub master: Option<u32>,
    /// Index of the link below this one (`IFLA_LINK`), such as the parent of a VLAN link. For one
    /// end of a veth pair, the index of the other end. The link with this index may be in another
    /// namespace ([`Self::peer_namespace`]).
    pub peer: Option<u32>,
    /// Number (nsid) that the link's own namespace uses for the namespace of `peer`. `None` if the
    /// link and `peer` are in one namespace.
    pub peer_namespace: Option<i32>,
    /// Alias that a program or an administrator set (`ifalias`).
    pub alias: Option<String>,
    /// Bridge port settings, if the link is a bridge port.
    pub port: Option<BridgePort>,
    /// VLAN settings, if the link is a bridge.
    pub bridge_vlans: Option<BridgeVlans>,
    /// Which frames of the link pass netfilter, if the link is a bridge; `None` if the kernel lacks
    /// `CONFIG_BRIDGE_NETFILTER`, too.
    pub nf_call: Option<NfCall>,
    /// `route_localnet`: the link accepts and sends packets from and to 127.0.0.0/8.
    pub routes_localnet: bool,
    /// IPv6 settings; `None` if the kernel lacks IPv6 or the MTU is under 1280 bytes.
    pub ipv6: Option<Ipv6>,
}

/// Multicast packets that a link receives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Multicast {
    /// Packets to the groups that the link has joined.
    #[default]
    Groups,
    /// All multicast packets, because the administrator or a program switched this on.
    All,
}

/// Kind of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// A network card, real or emulated.
    #[default]
    Physical,
    /// `lo`.
    Loopback,
    /// A Linux bridge.
    Bridge,
    /// One end of a veth pair.
    Veth,
    /// An ifb device.
    Ifb,
    /// A VLAN link for the VLAN with this number; [`Link::peer`] is its parent.
    Vlan(u16),
    /// Any other virtual link, by its name in `ip -details link`.
    Other(String),
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Physical => "physical",
            Self::Loopback => "loopback",
            Self::Bridge => "bridge",
            Self::Veth => "veth",
            Self::Ifb => "ifb",
            Self::Vlan(vlan) => return write!(f, "VLAN {vlan}"),
            Self::Other(name) => name,
        })
    }
}

/// State of a link's other end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Carrier {
    /// The other end is not connected or not up, or the link itself is down.
    #[default]
    Off,
    /// The other end (a switch, a veth peer) is up, or links of this kind have no other end.
    On,
}

/// VLAN settings of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeVlans {
    /// Each port passes only the VLANs that the port carries.
    pub filtering: bool,
    /// Default VLAN of new ports, untagged; 0 if new ports carry no VLAN.
    pub default: u16,
}

/// Whether frames of a bridge pass netfilter, by the bridge's own flags. If a flag is off, the
/// sysctl `net.bridge.bridge-nf-call-*` decides. Without the module `br_netfilter`, no frame
/// passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NfCall {
    /// `nf_call_iptables`: frames of IPv4.
    pub v4: bool,
    /// `nf_call_ip6tables`: frames of IPv6.
    pub v6: bool,
}

/// Settings of a bridge port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgePort {
    /// The port's state in the spanning tree is not `disabled`. The state of a port that is down is
    /// always `disabled`.
    pub is_enabled: bool,
    /// Flags that are on.
    pub flags: Vec<PortFlag>,
}

impl Link {
    /// Returns whether a link that was set up is as far as the kernel brings it for now: it passes
    /// traffic, or it has no carrier because the link below it has none. Such a link, for example a
    /// VLAN or macvlan link, comes up as soon as its parent does, which may never happen. A veth
    /// link without carrier is not settled: it waits for its peer, which has to be set up, too.
    pub fn is_settled(&self) -> bool {
        let has_peer = self.kind == LinkKind::Veth;
        self.is_operational || (self.is_up && self.carrier == Carrier::Off && !has_peer)
    }

    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: LinkMessage = answer.read(RTM_NEWLINK)?;
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            kind: match message.header.link_layer_type {
                LinkLayerType::Loopback => LinkKind::Loopback,
                _ => LinkKind::Physical,
            },
            is_up: flags.contains(LinkFlags::Up),
            is_promiscuous: flags.contains(LinkFlags::Promisc),
            multicast: if flags.contains(LinkFlags::Allmulti) {
                Multicast::All
            } else {
                Multicast::Groups
            },
            ..Self::default()
        };
        for attribute in &message.attributes {
            link.read(attribute);
        }
        Some(link)
    }

    fn read(&mut self, attribute: &LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name.clone_from(name),
            LinkAttribute::Address(it) => self.mac = it.as_slice().try_into().ok().map(MacAddress),
            LinkAttribute::Mtu(mtu) => self.mtu = *mtu,
            LinkAttribute::TxQueueLen(packets) => self.transmit_queue = *packets,
            LinkAttribute::OperState(state) => self.is_operational = *state == State::Up,
            LinkAttribute::Carrier(0) => self.carrier = Carrier::Off,
            LinkAttribute::Carrier(_) => self.carrier = Carrier::On,
            LinkAttribute::Controller(index) => self.master = Some(*index),
            LinkAttribute::Link(index) => self.peer = Some(*index),
            LinkAttribute::LinkNetNsId(id) => self.peer_namespace = Some(*id),
            LinkAttribute::IfAlias(alias) => self.alias = Some(alias.clone()),
            LinkAttribute::AfSpecUnspec(families) => {
                self.routes_localnet = conf::routes_localnet(families);
                self.ipv6 = Ipv6::read(families);
            }
            LinkAttribute::LinkInfo(parts) => parts.iter().for_each(|part| self.read_info(part)),
            _ => {}
        }
    }

    fn read_info(&mut self, part: &LinkInfo) {
        match part {
            LinkInfo::Kind(kind) => {
                self.kind = match kind {
                    InfoKind::Bridge => LinkKind::Bridge,
                    InfoKind::Veth => LinkKind::Veth,
                    InfoKind::Ifb => LinkKind::Ifb,
                    // 0 until this function reads the VLAN's number from `LinkInfo::Data`, which
                    // follows.
                    InfoKind::Vlan => LinkKind::Vlan(0),
                    other => LinkKind::Other(other.to_string()),
                }
            }
            LinkInfo::Data(InfoData::Bridge(attributes)) => {
                self.bridge_vlans = Some(BridgeVlans::read(attributes));
                self.nf_call = NfCall::read(attributes);
            }
            LinkInfo::Data(InfoData::Vlan(attributes)) => {
                for attribute in attributes {
                    if let InfoVlan::Id(vlan) = attribute {
                        self.kind = LinkKind::Vlan(*vlan);
                    }
                }
            }
            LinkInfo::PortData(InfoPortData::BridgePort(attributes)) => {
                self.port = Some(BridgePort::read(attributes));
            }
            _ => {}
        }
    }
}

impl BridgeVlans {
    fn read(attributes: &[InfoBridge]) -> Self {
        let mut vlans = Self::default();
        for attribute in attributes {
            match attribute {
                InfoBridge::VlanFiltering(filtering) => vlans.filtering = *filtering,
                InfoBridge::VlanDefaultPvid(default) => vlans.default = *default,
                _ => {}
            }
        }
        vlans
    }
}

impl NfCall {
    fn read(attributes: &[InfoBridge]) -> Option<Self> {
        let v4 = attributes.iter().find_map(|it| match it {
            InfoBridge::NfCallIpTables(is_on) => Some(*is_on),
            _ => None,
        })?;
        let v6 = attributes.contains(&InfoBridge::NfCallIp6Tables(true));
        Some(Self { v4, v6 })
    }

    /// Returns the attributes that turn on the flags that are on here.
    pub(crate) fn attributes(self) -> Vec<InfoBridge> {
        let v4 = self.v4.then_some(InfoBridge::NfCallIpTables(true));
        let v6 = self.v6.then_some(InfoBridge::NfCallIp6Tables(true));
        v4.into_iter().chain(v6).collect()
    }
}

impl BridgePort {
    fn read(attributes: &[InfoBridgePort]) -> Self {
        let is_enabled = |it: &InfoBridgePort| match it {
            InfoBridgePort::State(state) => *state != BridgePortState::Disabled,
            _ => false,
        };
        let is_on = |flag: &PortFlag| attributes.contains(&flag.attribute());
        Self {
            is_enabled: attributes.iter().any(is_enabled),
            flags: PortFlag::ALL.into_iter().filter(is_on).collect(),
        }
    }
}

/// Returns a message about the link with this index. If the index is 0, the link's name in
/// `attributes` identifies the link, or the message asks for a list of links.
pub(crate) fn message(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    message
}
