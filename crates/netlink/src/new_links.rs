//! Creates links: bridges, VLAN links, and stand-ins for links of another namespace.

use std::os::fd::{AsFd as _, AsRawFd as _};

use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, InfoVlan, LinkAttribute, LinkInfo, LinkMessage,
};
use netns::Netns;
use nix::libc::RTM_NEWLINK;

use crate::link::message;
use crate::{Connection, Error, Link, MacAddress, Request};

/// Kind of a stand-in. A stand-in is a link that imitates a link of another namespace. A caller can
/// send test packets through a stand-in without touching that namespace.
#[derive(Debug, Clone, Copy)]
pub enum StandIn<'a> {
    /// A bridge without ports, with the flags of netfilter of the imitated one.
    Bridge,
    /// One end of a veth pair. The fields are the namespace and the name of the other end.
    Pair(&'a Netns, &'a str),
}

impl Connection {
    /// Creates a bridge without ports. The bridge is down at first. Equivalent to `ip link add NAME
    /// address MAC mtu MTU type bridge`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_already_exists`] holds if the name is taken.
    pub fn add_bridge(&self, name: &str, mac: MacAddress, mtu: u32) -> Result<(), Error> {
        self.add_bridge_with(attributes(name, mac, mtu), (name, None))
    }

    /// Creates a bridge as [`Self::add_bridge`] does, whose ports pass only the VLANs that they carry.
    /// If the kernel cannot filter VLANs, it creates no bridge. Equivalent to `ip link add NAME address
    /// MAC mtu MTU type bridge vlan_filtering 1`.
    ///
    /// # Errors
    /// As [`Self::add_bridge`]. [`Error::is_not_supported`] holds if the kernel cannot filter VLANs.
    pub fn add_filtering_bridge(&self, name: &str, mac: MacAddress, mtu: u32) -> Result<(), Error> {
        let filtering = InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)]);
        self.add_bridge_with(attributes(name, mac, mtu), (name, Some(filtering)))
    }

    fn add_bridge_with(
        &self,
        mut attributes: Vec<LinkAttribute>,
        (name, data): (&str, Option<InfoData>),
    ) -> Result<(), Error> {
        attributes.push(LinkAttribute::LinkInfo(info(InfoKind::Bridge, data)));
        self.execute([create("bridge", name, &message(0, attributes))])
    }

    /// Creates a bridge or a veth pair that imitates `link`, a link of another namespace. Firewall
    /// rules treat the new link like `link`, because both have the same index, name and master.
    /// They also have the same MAC (unless the MAC of `link` is all zeros) and the same MTU
    /// (limited to 1,280 to 65,535 bytes). The new link is down.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn add_stand_in(&self, link: &Link, stand_in: StandIn<'_>) -> Result<(), Error> {
        let mut attributes = vec![
            LinkAttribute::IfName(link.name.clone()),
            LinkAttribute::Mtu(link.mtu.clamp(LEAST_MTU, MOST_MTU)),
            LinkAttribute::LinkInfo(match stand_in {
                StandIn::Bridge => {
                    let flags = link.nf_call.map(|it| InfoData::Bridge(it.attributes()));
                    info(InfoKind::Bridge, flags)
                }
                StandIn::Pair(namespace, name) => {
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
    /// Returns a request that creates a VLAN link on the bridge with the index `lower`. `vlan` is 1
    /// to 4094. The link is down at first. Equivalent to `ip link add link BRIDGE name NAME address
    /// MAC type vlan id VLAN`.
    pub fn add_vlan_link(name: &str, mac: MacAddress, vlan: u16, lower: u32) -> Self {
        let data = InfoData::Vlan(vec![InfoVlan::Id(vlan)]);
        let attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Link(lower),
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::LinkInfo(info(InfoKind::Vlan, Some(data))),
        ];
        create("VLAN link", name, &message(0, attributes))
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

/// MTU limits of a stand-in in bytes: the least MTU of IPv6 and the greatest MTU of a veth pair.
const LEAST_MTU: u32 = 1280;
const MOST_MTU: u32 = 65_535;
