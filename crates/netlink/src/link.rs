//! Links as the kernel describes them.

use netlink_packet_route::link::{
    BridgePortState, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVlan,
    LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, State,
};
use nix::libc::RTM_NEWLINK;

use crate::conf::{self, Ipv6};
use crate::connection::{Connection, link_named};
use crate::error::Error;
use crate::mac::MacAddress;
use crate::message::Message;

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The number by which requests name it; unique in its namespace.
    pub index: u32,
    /// The name; unique in its namespace.
    pub name: String,
    /// What it is.
    pub kind: LinkKind,
    /// The Ethernet address, where it has one.
    pub mac: Option<MacAddress>,
    /// In bytes.
    pub mtu: u32,
    /// Administratively up.
    pub is_up: bool,
    /// Operationally up: it passes traffic (RFC 2863).
    pub is_operational: bool,
    /// Whether something is at its other end.
    pub carrier: Carrier,
    /// It was told to receive everything.
    pub is_promiscuous: bool,
    /// Index of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// Index of the link below it or, for a veth, of its peer, which may be in another
    /// namespace.
    pub peer: Option<u32>,
    /// The namespace that `peer` is in, by the number that this one knows it by; `None`
    /// for this one.
    pub peer_namespace: Option<i32>,
    /// The text that somebody left on it.
    pub alias: Option<String>,
    /// What its bridge says of it.
    pub port: Option<BridgePort>,
    /// How it treats VLANs, where it is a bridge.
    pub bridge_vlans: Option<BridgeVlans>,
    /// `route_localnet`: packets of 127.0.0.0/8 come in and leave by it.
    pub routes_localnet: bool,
    /// How it takes part in IPv6; `None` without: the kernel has none, or its MTU is under 1280 bytes.
    pub ipv6: Option<Ipv6>,
}

/// What a link is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkKind {
    /// A device driver's: a network card, real or emulated.
    #[default]
    Physical,
    /// `lo`.
    Loopback,
    /// A Linux bridge.
    Bridge,
    /// One end of a pair.
    Veth,
    /// An intermediate functional block.
    Ifb,
    /// The host's end of the VLAN with this number, on the link that is its `peer`.
    Vlan(u16),
    /// Any other virtual link, as `ip -details link` names it.
    Other(String),
}

/// Whether a link has something at its other end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Nothing, or the link is down.
    #[default]
    Off,
    /// A switch, a peer that is up, or no such thing is known to the link.
    On,
}

/// How a bridge treats VLANs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeVlans {
    /// Each port passes the VLANs that it carries, and no others.
    pub filtering: bool,
    /// The one that ports without tag are in at first; 0 for none.
    pub default: u16,
}

/// A link's side of the bridge that it is a port of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgePort {
    /// Whether it passes frames.
    pub state: PortState,
    /// Frames may leave by the port that they came in by.
    pub hairpin: bool,
    /// It exchanges frames with ports that are not isolated, and with the bridge itself.
    pub isolated: bool,
}

/// The state of a port in the spanning tree protocol (IEEE 802.1D).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// The link is down.
    Disabled,
    /// Frames are dropped, none are learnt from.
    Listening,
    /// Frames are dropped and learnt from.
    Learning,
    /// Frames pass.
    Forwarding,
    /// Frames are dropped to break a loop.
    Blocking,
}

impl Connection {
    /// Those of the links called `names` that there are, in that order, by one question.
    ///
    /// # Errors
    /// [`Error::Refused`], but not for a link that does not exist.
    pub fn links_named<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<Link>, Error> {
        let requests = names.into_iter().map(link_named).collect();
        let mut links = Vec::new();
        for outcome in self.transport.outcomes(requests)? {
            match outcome {
                Err(error) if error.is_not_found() => {}
                answers => links.extend(answers?.iter().filter_map(Link::from_answer)),
            }
        }
        Ok(links)
    }
}

impl Link {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        answer.read(RTM_NEWLINK).as_ref().map(Self::from_message)
    }

    pub(crate) fn from_message(message: &LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            kind: match message.header.link_layer_type {
                LinkLayerType::Loopback => LinkKind::Loopback,
                _ => LinkKind::Physical,
            },
            is_up: flags.contains(LinkFlags::Up),
            is_promiscuous: flags.contains(LinkFlags::Promisc),
            ..Self::default()
        };
        for attribute in &message.attributes {
            link.read(attribute);
        }
        link
    }

    fn read(&mut self, attribute: &LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name.clone_from(name),
            LinkAttribute::Address(bytes) => self.mac = MacAddress::from_bytes(bytes),
            LinkAttribute::Mtu(mtu) => self.mtu = *mtu,
            LinkAttribute::OperState(state) => self.is_operational = *state == State::Up,
            LinkAttribute::Carrier(carrier) => {
                self.carrier = if *carrier == 0 {
                    Carrier::Off
                } else {
                    Carrier::On
                };
            }
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
                    // The number follows.
                    InfoKind::Vlan => LinkKind::Vlan(0),
                    other => LinkKind::Other(other.to_string()),
                }
            }
            LinkInfo::Data(InfoData::Bridge(attributes)) => {
                self.bridge_vlans = Some(BridgeVlans::read(attributes));
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

impl BridgePort {
    fn read(attributes: &[InfoBridgePort]) -> Self {
        let mut port = Self {
            state: PortState::Disabled,
            hairpin: false,
            isolated: false,
        };
        for attribute in attributes {
            match attribute {
                InfoBridgePort::HairpinMode(hairpin) => port.hairpin = *hairpin,
                InfoBridgePort::Isolated(isolated) => port.isolated = *isolated,
                InfoBridgePort::State(state) => {
                    port.state = match state {
                        BridgePortState::Listening => PortState::Listening,
                        BridgePortState::Learning => PortState::Learning,
                        BridgePortState::Forwarding => PortState::Forwarding,
                        BridgePortState::Blocking => PortState::Blocking,
                        _ => PortState::Disabled,
                    }
                }
                _ => {}
            }
        }
        port
    }
}
