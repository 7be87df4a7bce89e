//! Links as the kernel describes them.

use netlink_packet_core::Nla as _;
use netlink_packet_route::link::{InfoBridge, IpVlanMode, LinkAttribute, LinkMessage, MacVlanMode};
use nix::libc::{
    ARPHRD_LOOPBACK, IFF_ALLMULTI, IFF_PROMISC, IFF_UP, IFLA_ADDRESS, IFLA_AF_SPEC,
    IFLA_ALT_IFNAME, IFLA_CARRIER, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND,
    IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO,
    IFLA_MASTER, IFLA_MTU, IFLA_OPERSTATE, IFLA_PARENT_DEV_NAME, IFLA_PERM_ADDRESS, IFLA_PROP_LIST,
    IFLA_TXQLEN, RTM_NEWLINK,
};

use tun::Tap;

use crate::attributes::{attributes, entry, short, text, value, word};
use crate::{Ipv6, MacAddress, Message, PortFlag, conf};

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Number that identifies the link in requests; unique in its namespace.
    pub index: u32,
    /// Name; unique in its namespace.
    pub name: String,
    /// Further names, by which the kernel also finds the link; unique in its namespace.
    pub alternative_names: Vec<String>,
    /// Kind of link.
    pub kind: LinkKind,
    /// Ethernet address, if the link has one.
    pub mac: Option<MacAddress>,
    /// The permanent Ethernet address, which the hardware has and no command changes. `None` for a
    /// virtual link, and before Linux 5.6.
    pub permanent_mac: Option<MacAddress>,
    /// Name of the device that has the link, such as a PCI address. `None` for a virtual link, and
    /// before Linux 5.14.
    pub parent_device: Option<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The link is administratively up.
    pub is_up: bool,
    /// The link is operationally up: it passes traffic (RFC 2863). Some kinds, such as ipvlan, do not
    /// report that state, so they are operational as soon as they are up.
    pub is_operational: bool,
    /// State of the link's other end, such as a switch or a veth peer.
    pub carrier: Carrier,
    /// Number of queues of a multi-queue tap link that programs have opened; 0 for other links.
    pub open_queues: u32,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
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
    #[display("VLAN {_0}")]
    Vlan(u16),
    /// A macvlan link; [`Link::peer`] is its parent.
    #[display("macvlan in mode {_0}")]
    Macvlan(MacVlanMode),
    /// An ipvlan link; [`Link::peer`] is its parent.
    #[display("ipvlan in mode {_0}")]
    Ipvlan(IpVlanMode),
    /// A link that drops what it sends.
    Dummy,
    /// A VRF link for the routing table with this number.
    #[display("VRF of table {_0}")]
    Vrf(u32),
    /// A tap link, which programs open by `/dev/net/tun`. Its name is that of `ip -details link`, and
    /// records contain it.
    #[display("{TUN}")]
    Tap(Box<Tap>),
    /// Any other virtual link, by its name in `ip -details link`.
    Other(String),
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

    /// Reads the link from the kernel's answer: `struct ifinfomsg` and attributes. Returns `None` if
    /// the answer is not about a link. An attribute that this function does not understand is left
    /// out; netlink-packet-route would refuse the whole link.
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        if answer.kind != RTM_NEWLINK {
            return None;
        }
        let (header, rest) = answer.body.split_first_chunk::<HEADER>()?;
        let flags = word(header.get(FLAGS..)?)?;
        let has = |flag: i32| flags & flag.cast_unsigned() != 0;
        let mut link = Self {
            index: answer.subject()?.1,
            kind: match short(header.get(HARDWARE..)?)? {
                ARPHRD_LOOPBACK => LinkKind::Loopback,
                _ => LinkKind::Physical,
            },
            is_up: has(IFF_UP),
            is_promiscuous: has(IFF_PROMISC),
            multicast: if has(IFF_ALLMULTI) {
                Multicast::All
            } else {
                Multicast::Groups
            },
            ..Self::default()
        };
        for it in attributes(rest) {
            link.read(it.kind, it.value);
        }
        link.is_operational &= link.is_up;
        Some(link)
    }

    fn read(&mut self, kind: u16, value: &[u8]) {
        match kind {
            IFLA_IFNAME => self.name = text(value),
            IFLA_PROP_LIST => {
                let names = attributes(value).filter(|it| it.kind == IFLA_ALT_IFNAME);
                self.alternative_names = names.map(|it| text(it.value)).collect();
            }
            IFLA_ADDRESS => self.mac = value.try_into().ok().map(MacAddress),
            IFLA_PERM_ADDRESS => self.permanent_mac = value.try_into().ok().map(MacAddress),
            IFLA_PARENT_DEV_NAME => self.parent_device = Some(text(value)),
            IFLA_MTU => self.mtu = word(value).unwrap_or_default(),
            IFLA_TXQLEN => self.transmit_queue = word(value).unwrap_or_default(),
            IFLA_OPERSTATE => self.is_operational = matches!(value, [OPER_UP | OPER_UNKNOWN]),
            IFLA_CARRIER if value == [0] => self.carrier = Carrier::Off,
            IFLA_CARRIER => self.carrier = Carrier::On,
            IFLA_MASTER => self.master = word(value),
            IFLA_LINK => self.peer = word(value),
            IFLA_LINK_NETNSID => self.peer_namespace = entry(value, 0),
            IFLA_IFALIAS => self.alias = Some(text(value)),
            IFLA_AF_SPEC => {
                self.routes_localnet = conf::routes_localnet(value);
                self.ipv6 = Ipv6::read(value);
            }
            IFLA_LINKINFO => self.read_info(value),
            _ => {}
        }
    }

    fn read_info(&mut self, info: &[u8]) {
        let data = value(info, IFLA_INFO_DATA).unwrap_or_default();
        // The first attribute of each of these kinds: its VLAN, mode or table.
        let first = value(data, FIRST).unwrap_or_default();
        let (short, word) = (short(first).unwrap_or(0), word(first).unwrap_or(0));
        if let Some(kind) = value(info, IFLA_INFO_KIND) {
            self.kind = match text(kind).as_str() {
                "bridge" => LinkKind::Bridge,
                "veth" => LinkKind::Veth,
                "ifb" => LinkKind::Ifb,
                "dummy" => LinkKind::Dummy,
                "vlan" => LinkKind::Vlan(short),
                "macvlan" => LinkKind::Macvlan(word.into()),
                "ipvlan" => LinkKind::Ipvlan(short.into()),
                "vrf" => LinkKind::Vrf(word),
                TUN if value(data, TUN_TYPE) == Some(&[TYPE_TAP]) => {
                    self.open_queues = open_queues(data);
                    LinkKind::Tap(Box::new(tap(data)))
                }
                other => LinkKind::Other(other.to_owned()),
            };
        }
        if self.kind == LinkKind::Bridge {
            self.bridge_vlans = Some(BridgeVlans::read(data));
            self.nf_call = NfCall::read(data);
        }
        if value(info, IFLA_INFO_SLAVE_KIND).map(text).as_deref() == Some("bridge") {
            let port = value(info, IFLA_INFO_SLAVE_DATA);
            self.port = port.map(BridgePort::read);
        }
    }
}

impl BridgeVlans {
    fn read(data: &[u8]) -> Self {
        Self {
            filtering: is_on(data, BR_VLAN_FILTERING).unwrap_or_default(),
            default: value(data, BR_VLAN_DEFAULT_PVID)
                .and_then(short)
                .unwrap_or_default(),
        }
    }
}

impl NfCall {
    fn read(data: &[u8]) -> Option<Self> {
        Some(Self {
            v4: is_on(data, BR_NF_CALL_IPTABLES)?,
            v6: is_on(data, BR_NF_CALL_IP6TABLES) == Some(true),
        })
    }

    /// Returns the attributes that turn on the flags that are on here.
    pub(crate) fn attributes(self) -> Vec<InfoBridge> {
        let v4 = self.v4.then_some(InfoBridge::NfCallIpTables(true));
        let v6 = self.v6.then_some(InfoBridge::NfCallIp6Tables(true));
        v4.into_iter().chain(v6).collect()
    }
}

impl BridgePort {
    fn read(data: &[u8]) -> Self {
        let is_on = |flag: &PortFlag| is_on(data, flag.attribute().kind()) == Some(true);
        Self {
            is_enabled: value(data, BRPORT_STATE).is_some_and(|it| it != [BR_STATE_DISABLED]),
            flags: PortFlag::ALL.into_iter().filter(is_on).collect(),
        }
    }
}

/// Returns the number of queues that a program reads or has disabled (`IFF_DETACH_QUEUE`).
fn open_queues(data: &[u8]) -> u32 {
    let counts = [TUN_QUEUES, TUN_DISABLED_QUEUES].map(|it| value(data, it));
    counts.into_iter().flatten().filter_map(word).sum()
}

fn tap(data: &[u8]) -> Tap {
    let id = |kind| value(data, kind).and_then(word);
    Tap {
        multi_queue: is_on(data, TUN_MULTI_QUEUE).unwrap_or_default(),
        owner: id(TUN_OWNER),
        group: id(TUN_GROUP),
    }
}

/// Returns whether the attribute `kind` in `data`, one byte, is not 0; `None` if it is missing.
fn is_on(data: &[u8], kind: u16) -> Option<bool> {
    value(data, kind).map(|it| it != [0])
}

/// Returns a message about the link with this index. If the index is 0, the link's name in
/// `attributes` identifies the link, or the message asks for a list of links.
pub(crate) fn message(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    message
}

/// Size of `struct ifinfomsg`, and the offsets of `ifi_type` and `ifi_flags` in it, in bytes.
pub(crate) const HEADER: usize = 16;
const HARDWARE: usize = 2;
const FLAGS: usize = 8;

/// `IF_OPER_UP` and `IF_OPER_UNKNOWN`.
const OPER_UP: u8 = 6;
const OPER_UNKNOWN: u8 = 0;

// Numbers of `include/uapi/linux/if_link.h` and `if_bridge.h`, there with the prefix `IFLA_`.
/// `IFLA_VLAN_ID`, `IFLA_MACVLAN_MODE`, `IFLA_IPVLAN_MODE` and `IFLA_VRF_TABLE`.
const FIRST: u16 = 1;
const BR_VLAN_FILTERING: u16 = 7;
const BR_NF_CALL_IPTABLES: u16 = 36;
const BR_NF_CALL_IP6TABLES: u16 = 37;
const BR_VLAN_DEFAULT_PVID: u16 = 39;
const TUN_OWNER: u16 = 1;
const TUN_GROUP: u16 = 2;
const TUN_TYPE: u16 = 3;
const TUN_MULTI_QUEUE: u16 = 7;
const TUN_QUEUES: u16 = 8;
const TUN_DISABLED_QUEUES: u16 = 9;
const BRPORT_STATE: u16 = 1;
const BR_STATE_DISABLED: u8 = 0;

/// Kind of tun and tap links, and `IFF_TAP`, the type of tap links.
const TUN: &str = "tun";
const TYPE_TAP: u8 = 2;
