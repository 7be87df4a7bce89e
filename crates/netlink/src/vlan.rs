//! VLANs: those that bridge ports carry, and VLAN links of the host.

use std::fmt;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, InfoData, InfoKind, InfoVlan,
    LinkAttribute, LinkExtentMask, LinkInfo, LinkMessage,
};
use nix::libc::{RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK};

use crate::connection::Connection;
use crate::error::Error;
use crate::mac::MacAddress;
use crate::message::Message;
use crate::request::Request;

/// VLANs that a port carries, with their tagging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortVlans {
    /// First VLAN, 1 to 4094.
    pub first: u16,
    /// Last VLAN; equal to `first` for a single one.
    pub last: u16,
    /// Tagging of their frames at the port.
    pub tagging: Tagging,
}

/// Tagging of a VLAN's frames at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tagging {
    /// Frames have the VLAN's tag in both directions.
    Tagged,
    /// Frames leave without a tag.
    Untagged,
    /// Frames leave without a tag; frames that arrive without one belong to this VLAN (PVID).
    Access,
}

/// A VLAN link of the host on a bridge, to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanLink<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its address.
    pub mac: MacAddress,
    /// The VLAN, 1 to 4094.
    pub vlan: u16,
    /// Index of the bridge below it.
    pub lower: u32,
}

impl Connection {
    /// Returns the VLANs of the port, or of the bridge itself, with this index. Equivalent to
    /// `bridge vlan show dev`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn port_vlans(&self, port: u32) -> Result<Vec<PortVlans>, Error> {
        let mut request = LinkMessage::default();
        request.header.interface_family = AddressFamily::Bridge;
        let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]);
        request.attributes.push(mask);
        let reply = self.all("read VLANs", Message::new(RTM_GETLINK, &request))?;
        let ports = reply
            .iter()
            .filter_map(|it| it.read::<LinkMessage>(RTM_NEWLINK));
        let port = ports.filter(|it| it.header.index == port);
        Ok(port.flat_map(|it| PortVlans::from_message(&it)).collect())
    }
}

impl Request {
    /// Makes the port with this index carry `vlans`. Equivalent to `bridge vlan add dev … vid …`.
    pub fn add_port_vlans(port: u32, vlans: PortVlans) -> Self {
        let message = Message::new(RTM_SETLINK, &vlans.message(port, Object::Port));
        Self::change(format!("add {vlans} to port number {port}"), message, 0)
    }

    /// Makes the bridge with this index receive frames of `vlans` itself. Equivalent to `bridge
    /// vlan add dev … vid … self`.
    pub fn add_bridge_vlans(bridge: u32, vlans: PortVlans) -> Self {
        let message = Message::new(RTM_SETLINK, &vlans.message(bridge, Object::Bridge));
        Self::change(format!("add {vlans} to bridge number {bridge}"), message, 0)
    }

    /// Stops the bridge with this index from receiving frames of `vlans` itself. Equivalent to
    /// `bridge vlan delete dev … vid … self`.
    pub fn delete_bridge_vlans(bridge: u32, vlans: PortVlans) -> Self {
        let message = Message::new(RTM_DELLINK, &vlans.message(bridge, Object::Bridge));
        let operation = format!("delete {vlans} from bridge number {bridge}");
        Self::change(operation, message, 0)
    }

    /// Removes `vlans` from the port with this index. Equivalent to `bridge vlan delete dev … vid
    /// …`.
    pub fn delete_port_vlans(port: u32, vlans: PortVlans) -> Self {
        let message = Message::new(RTM_DELLINK, &vlans.message(port, Object::Port));
        Self::change(
            format!("delete {vlans} from port number {port}"),
            message,
            0,
        )
    }

    /// Creates a VLAN link of the host, down. Equivalent to `ip link add link BRIDGE name NAME type
    /// vlan id VLAN`.
    pub fn add_vlan_link(link: &VlanLink<'_>) -> Self {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(link.name.to_owned()),
            LinkAttribute::Link(link.lower),
            LinkAttribute::Address(link.mac.0.to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(link.vlan)])),
            ]),
        ];
        let operation = format!("create VLAN link {}", link.name);
        let message = Message::new(RTM_NEWLINK, &message);
        Self::change(operation, message, NLM_F_CREATE | NLM_F_EXCL)
    }
}

/// The target of a VLAN request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Port,
    Bridge,
}

impl PortVlans {
    /// Reads the VLANs of a port or bridge from its description in the bridge family.
    pub(crate) fn from_message(message: &LinkMessage) -> Vec<Self> {
        let specifications = message
            .attributes
            .iter()
            .filter_map(|attribute| match attribute {
                LinkAttribute::AfSpecBridge(specification) => Some(specification),
                _ => None,
            });
        let infos = specifications.flatten().filter_map(|it| match it {
            AfSpecBridge::VlanInfo(info) => Some(*info),
            _ => None,
        });
        infos.map(Self::of_one).collect()
    }

    fn of_one(info: BridgeVlanInfo) -> Self {
        let tagging = if info.flags.contains(BridgeVlanInfoFlags::Pvid) {
            Tagging::Access
        } else if info.flags.contains(BridgeVlanInfoFlags::Untagged) {
            Tagging::Untagged
        } else {
            Tagging::Tagged
        };
        Self {
            first: info.vid,
            last: info.vid,
            tagging,
        }
    }

    /// Returns whether all these VLANs are in `carried` with the same tagging.
    pub fn is_carried(self, carried: &[Self]) -> bool {
        (self.first..=self.last).all(|vlan| {
            let same =
                |it: &Self| it.first <= vlan && vlan <= it.last && it.tagging == self.tagging;
            carried.iter().any(same)
        })
    }

    fn message(self, index: u32, object: Object) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.header.index = index;
        let mut specification: Vec<_> = self.infos().map(AfSpecBridge::VlanInfo).collect();
        if object == Object::Bridge {
            specification.insert(0, AfSpecBridge::Flags(BridgeFlag::LowerDev));
        }
        let specification = LinkAttribute::AfSpecBridge(specification);
        message.attributes.push(specification);
        message
    }

    fn infos(self) -> impl Iterator<Item = BridgeVlanInfo> {
        let flags = match self.tagging {
            Tagging::Tagged => BridgeVlanInfoFlags::empty(),
            Tagging::Untagged => BridgeVlanInfoFlags::Untagged,
            Tagging::Access => BridgeVlanInfoFlags::Untagged | BridgeVlanInfoFlags::Pvid,
        };
        let info = move |vid, bound| BridgeVlanInfo {
            vid,
            flags: flags | bound,
        };
        let infos = if self.first == self.last {
            vec![info(self.first, BridgeVlanInfoFlags::empty())]
        } else {
            vec![
                info(self.first, BridgeVlanInfoFlags::RangeBegin),
                info(self.last, BridgeVlanInfoFlags::RangeEnd),
            ]
        };
        infos.into_iter()
    }
}

impl fmt::Display for PortVlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "VLAN {}", self.first);
        }
        write!(f, "VLANs {} to {}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlans(first: u16, last: u16, tagging: Tagging) -> PortVlans {
        PortVlans {
            first,
            last,
            tagging,
        }
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        for tagging in [Tagging::Tagged, Tagging::Untagged, Tagging::Access] {
            let asked = vlans(100, 100, tagging);
            assert_eq!(
                PortVlans::from_message(&asked.message(7, Object::Port)),
                [asked]
            );
        }
    }

    #[test]
    fn range_is_two_entries_with_its_bounds() {
        let infos: Vec<_> = vlans(200, 299, Tagging::Tagged).infos().collect();
        let bounds: Vec<_> = infos.iter().map(|info| (info.vid, info.flags)).collect();
        assert_eq!(
            bounds,
            [
                (200, BridgeVlanInfoFlags::RangeBegin),
                (299, BridgeVlanInfoFlags::RangeEnd)
            ]
        );
    }

    #[test]
    fn carried_is_every_vlan_with_its_tagging() {
        let carried = [
            vlans(1, 1, Tagging::Access),
            vlans(200, 250, Tagging::Tagged),
            vlans(251, 299, Tagging::Tagged),
        ];
        assert!(vlans(200, 299, Tagging::Tagged).is_carried(&carried));
        assert!(!vlans(200, 300, Tagging::Tagged).is_carried(&carried));
        assert!(!vlans(1, 1, Tagging::Untagged).is_carried(&carried));
    }
}
