//! Creates links, and imitations of links of another namespace.

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVeth, InfoVlan, InfoVrf,
    IpVlanMode, LinkAttribute, LinkInfo, LinkMessage, MacVlanMode,
};
use netns::Netns;
use nix::libc::RTM_NEWLINK;

use crate::link::message;
use crate::{Connection, Error, Link, LinkKind, MacAddress, Request};

/// Kind of a probe link. A probe link imitates a link of another namespace. A caller can send test
/// packets through it without touching that namespace.
#[derive(Debug, Clone, Copy)]
pub enum ProbeLink<'a> {
    /// A bridge without ports, with the flags of netfilter of the imitated one.
    Bridge,
    /// One end of a veth pair. The fields are the namespace and the name of the other end.
    Pair(&'a Netns, &'a str),
}

/// A link to be created, down at first.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// Name.
    pub name: &'a str,
    /// Kind, with the settings that only links of this kind have.
    pub kind: NewKind,
    /// Index of the link below this one, which the kinds VLAN, macvlan and ipvlan need. The link
    /// below is in the namespace of the connection.
    pub parent: Option<u32>,
    /// MAC; `None` lets the kernel choose it. On the host, udev rewrites a MAC that the kernel chose.
    pub mac: Option<MacAddress>,
    /// MTU in bytes; `None` for that of the link below, or else the kernel's default.
    pub mtu: Option<u32>,
    /// Namespace in which the kernel creates the link; `None` for that of the connection. Linux 6.1
    /// to 6.14 refuse a name that a link of the connection's namespace has, too.
    pub namespace: Option<&'a Netns>,
}

/// Kind of a link to be created, by its name in `ip link add … type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewKind {
    /// A bridge without ports.
    Bridge,
    /// A bridge whose ports pass only the VLANs that they carry. If the kernel cannot filter VLANs,
    /// it creates no bridge.
    FilteringBridge,
    /// A link that drops what it sends.
    Dummy,
    /// A VLAN link for this VLAN, 1 to 4094.
    Vlan(u16),
    /// A macvlan link, and the length of the queue for broadcasts that it asks for; the longest of
    /// all links below one parent counts.
    Macvlan(MacVlanMode, Option<u32>),
    /// An ipvlan link. It has the MAC of its parent.
    Ipvlan(IpVlanMode),
    /// A VRF link for the routing table with this number.
    Vrf(u32),
}

impl NewLink<'_> {
    /// Returns a link without parent, in the namespace of the connection.
    pub const fn of(name: &str, kind: NewKind) -> NewLink<'_> {
        NewLink {
            name,
            kind,
            parent: None,
            mac: None,
            mtu: None,
            namespace: None,
        }
    }
}

impl NewKind {
    /// Returns the kind as which a link of this kind is read.
    pub fn made(self) -> LinkKind {
        match self {
            Self::Bridge | Self::FilteringBridge => LinkKind::Bridge,
            Self::Dummy => LinkKind::Dummy,
            Self::Vlan(id) => LinkKind::Vlan(id),
            Self::Macvlan(mode, _) => LinkKind::Macvlan(mode),
            Self::Ipvlan(mode) => LinkKind::Ipvlan(mode),
            Self::Vrf(table) => LinkKind::Vrf(table),
        }
    }

    /// Returns the attributes of this kind, and its name in messages.
    fn attributes(self) -> (Vec<LinkInfo>, &'static str) {
        let vlan = |id| InfoData::Vlan(vec![InfoVlan::Id(id)]);
        match self {
            Self::Bridge => (info(InfoKind::Bridge, None), "bridge"),
            Self::FilteringBridge => {
                let filtering = InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)]);
                (info(InfoKind::Bridge, Some(filtering)), "bridge")
            }
            Self::Dummy => (info(InfoKind::Dummy, None), "dummy link"),
            Self::Vlan(id) => (info(InfoKind::Vlan, Some(vlan(id))), "VLAN link"),
            Self::Macvlan(mode, queue) => {
                let mut data = vec![InfoMacVlan::Mode(mode)];
                data.extend(queue.map(InfoMacVlan::BcQueueLen));
                let data = InfoData::MacVlan(data);
                (info(InfoKind::MacVlan, Some(data)), "macvlan link")
            }
            Self::Ipvlan(mode) => {
                let data = InfoData::IpVlan(vec![InfoIpVlan::Mode(mode)]);
                (info(InfoKind::IpVlan, Some(data)), "ipvlan link")
            }
            Self::Vrf(table) => {
                let data = InfoData::Vrf(vec![InfoVrf::TableId(table)]);
                (info(InfoKind::Vrf, Some(data)), "VRF link")
            }
        }
    }
}

impl Connection {
    /// Creates a link. Equivalent to `ip link add`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_already_exists`] holds if the name is taken, or if the parent
    /// has a link of this VLAN. [`Error::is_not_supported`] holds if the kernel lacks the kind.
    pub fn add_link(&self, link: &NewLink<'_>) -> Result<(), Error> {
        self.execute([Request::add_link(link)])
    }

    /// Creates a bridge or a veth pair that imitates `link`, a link of another namespace. Firewall
    /// rules treat the new link like `link`, because both have the same index, name and master.
    /// They also have the same MAC (unless the MAC of `link` is all zeros) and the same MTU
    /// (limited to 1,280 to 65,535 bytes). The new link is down.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn add_probe_link(&self, link: &Link, probe_link: ProbeLink<'_>) -> Result<(), Error> {
        let mut attributes = vec![
            LinkAttribute::IfName(link.name.clone()),
            LinkAttribute::Mtu(link.mtu.clamp(LEAST_MTU, MOST_MTU)),
            LinkAttribute::LinkInfo(match probe_link {
                ProbeLink::Bridge => {
                    let flags = link.nf_call.map(|it| InfoData::Bridge(it.attributes()));
                    info(InfoKind::Bridge, flags)
                }
                ProbeLink::Pair(namespace, name) => {
                    pair_with(vec![LinkAttribute::IfName(name.to_owned())], namespace)
                }
            }),
        ];
        let mac = link.mac.filter(|it| *it != UNSET);
        attributes.extend(mac.map(|it| LinkAttribute::Address(it.0.to_vec())));
        attributes.extend(link.master.map(LinkAttribute::Controller));
        let message = message(link.index, attributes);
        self.execute([create("a link in the place of", &link.name, &message)])
    }
}

impl Request {
    /// Returns a request that creates a link, as [`Connection::add_link`] does.
    pub fn add_link(link: &NewLink<'_>) -> Self {
        let (info, words) = link.kind.attributes();
        let mut attributes = vec![
            LinkAttribute::IfName(link.name.to_owned()),
            LinkAttribute::LinkInfo(info),
        ];
        let mac = link.mac.map(|it| LinkAttribute::Address(it.0.to_vec()));
        attributes.extend(mac);
        attributes.extend(link.mtu.map(LinkAttribute::Mtu));
        attributes.extend(link.parent.map(LinkAttribute::Link));
        let file = link.namespace.map(|it| it.as_fd().as_raw_fd());
        attributes.extend(file.map(LinkAttribute::NetNsFd));
        create(words, link.name, &message(0, attributes))
    }
}

/// Returns the attributes of a new link. They contain a MAC because udev would rewrite a MAC that
/// the kernel chose.
pub(crate) fn attributes(name: &str, mac: MacAddress, mtu: u32) -> Vec<LinkAttribute> {
    vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::Address(mac.0.to_vec()),
    ]
}

/// Returns the attributes that make a new link one end of a veth pair. The kernel creates the other
/// end with the attributes `other` in `namespace`.
pub(crate) fn pair_with(mut other: Vec<LinkAttribute>, namespace: &Netns) -> Vec<LinkInfo> {
    other.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
    let peer = InfoData::Veth(InfoVeth::Peer(message(0, other)));
    info(InfoKind::Veth, Some(peer))
}

/// Returns the request that creates the link that `message` describes. `words`, the kind of link,
/// and `name` are for error messages.
pub(crate) fn create(words: &str, name: &str, message: &LinkMessage) -> Request {
    Request::create(format!("create {words} {name}"), RTM_NEWLINK, message)
}

fn info(kind: InfoKind, data: Option<InfoData>) -> Vec<LinkInfo> {
    let data = data.map(LinkInfo::Data);
    [LinkInfo::Kind(kind)].into_iter().chain(data).collect()
}

/// MAC that the kernel reports for a link without a MAC.
const UNSET: MacAddress = MacAddress([0; 6]);

/// MTU limits of a probe link in bytes: the least MTU of IPv6 and the greatest MTU of a veth pair.
const LEAST_MTU: u32 = 1280;
const MOST_MTU: u32 = 65_535;
