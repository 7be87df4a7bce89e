//! Reads, adds and removes the VLANs that bridge ports and bridges carry.

use std::fmt;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask,
    LinkMessage,
};
use nix::libc::{IFLA_AF_SPEC, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK};

use crate::attributes::{attributes, short, value};
use crate::link::{HEADER, message};
use crate::{Connection, Error, Message, Request};

/// A range of VLANs that a bridge port, or the bridge itself, carries with the same tagging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortVlans {
    /// First VLAN, 1 to 4094.
    pub first: u16,
    /// Last VLAN; equal to `first` for a single VLAN.
    pub last: u16,
    /// Tagging of these VLANs' frames at the port.
    pub tagging: Tagging,
}

/// Tagging of a VLAN's frames at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tagging {
    /// Frames have the VLAN's tag in both directions.
    Tagged,
    /// Frames leave without a tag and arrive with the VLAN's tag.
    Untagged,
    /// Frames leave without a tag, and frames that arrive without a tag belong to this VLAN (PVID).
    Access,
}

/// A link that can carry VLANs, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum VlanCarrier {
    /// A port of a bridge.
    #[display("port number {_0}")]
    Port(u32),
    /// The bridge itself, as with `self` in `bridge vlan add … self`.
    #[display("bridge number {_0}")]
    Bridge(u32),
}

impl Connection {
    /// Returns the VLANs of the port, or of the bridge itself, with this index. Equivalent to
    /// `bridge vlan show dev`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn port_vlans(&self, port: u32) -> Result<Vec<PortVlans>, Error> {
        let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]);
        let mut message = message(0, vec![mask]);
        message.header.interface_family = AddressFamily::Bridge;
        let request = Request::list("read VLANs", RTM_GETLINK, &message);
        let of_port = |it: &Message| it.subject().is_some_and(|(_, index)| index == port);
        let ports = self.objects(&[request], |it| of_port(it).then(|| PortVlans::read(it)))?;
        Ok(ports.concat())
    }
}

impl Request {
    /// Returns a request that adds `vlans` to `carrier`. Equivalent to `bridge vlan add dev … vid
    /// …`.
    pub fn add_vlans(carrier: VlanCarrier, vlans: PortVlans) -> Self {
        let operation = format!("add {vlans} to {carrier}");
        Self::change(operation, RTM_SETLINK, &vlans.message(carrier))
    }

    /// Returns a request that removes `vlans` from `carrier`. Equivalent to `bridge vlan delete dev
    /// … vid …`.
    pub fn delete_vlans(carrier: VlanCarrier, vlans: PortVlans) -> Self {
        let operation = format!("delete {vlans} from {carrier}");
        Self::change(operation, RTM_DELLINK, &vlans.message(carrier))
    }
}

impl PortVlans {
    /// Reads the VLANs of a port or bridge from the kernel's message about it, which has the
    /// address family `AF_BRIDGE`.
    pub(crate) fn read(answer: &Message) -> Vec<Self> {
        let attributes_of_link = answer.body.get(HEADER..).unwrap_or_default();
        let bridge = value(attributes_of_link, IFLA_AF_SPEC).unwrap_or_default();
        let infos = attributes(bridge).filter(|it| it.kind == BRIDGE_VLAN_INFO);
        infos.filter_map(|it| Self::of_one(it.value)).collect()
    }

    /// Reads `struct bridge_vlan_info`.
    fn of_one(info: &[u8]) -> Option<Self> {
        let (flags, vlan) = (
            BridgeVlanInfoFlags::from_bits_retain(short(info)?),
            short(info.get(2..)?)?,
        );
        let tagging = if flags.contains(BridgeVlanInfoFlags::Pvid) {
            Tagging::Access
        } else if flags.contains(BridgeVlanInfoFlags::Untagged) {
            Tagging::Untagged
        } else {
            Tagging::Tagged
        };
        Some(Self::one(vlan, tagging))
    }

    /// Returns the range that contains only `vlan`.
    pub fn one(vlan: u16, tagging: Tagging) -> Self {
        Self {
            first: vlan,
            last: vlan,
            tagging,
        }
    }

    /// Returns whether `carried`, the VLANs of a port or bridge, contains every VLAN of `self` with
    /// the same tagging.
    pub fn is_carried(self, carried: &[Self]) -> bool {
        (self.first..=self.last).all(|vlan| {
            let same =
                |it: &Self| it.first <= vlan && vlan <= it.last && it.tagging == self.tagging;
            carried.iter().any(same)
        })
    }

    fn message(self, carrier: VlanCarrier) -> LinkMessage {
        let (index, target) = match carrier {
            VlanCarrier::Port(index) => (index, None),
            VlanCarrier::Bridge(index) => (index, Some(AfSpecBridge::Flags(BridgeFlag::LowerDev))),
        };
        let infos = self.infos().into_iter().map(AfSpecBridge::VlanInfo);
        let specification = target.into_iter().chain(infos).collect();
        let mut message = message(index, vec![LinkAttribute::AfSpecBridge(specification)]);
        message.header.interface_family = AddressFamily::Bridge;
        message
    }

    fn infos(self) -> Vec<BridgeVlanInfo> {
        let flags = match self.tagging {
            Tagging::Tagged => BridgeVlanInfoFlags::empty(),
            Tagging::Untagged => BridgeVlanInfoFlags::Untagged,
            Tagging::Access => BridgeVlanInfoFlags::Untagged | BridgeVlanInfoFlags::Pvid,
        };
        let info = move |vid, bound| BridgeVlanInfo {
            vid,
            flags: flags | bound,
        };
        if self.first == self.last {
            return vec![info(self.first, BridgeVlanInfoFlags::empty())];
        }
        vec![
            info(self.first, BridgeVlanInfoFlags::RangeBegin),
            info(self.last, BridgeVlanInfoFlags::RangeEnd),
        ]
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

/// `IFLA_BRIDGE_VLAN_INFO`, with `struct bridge_vlan_info`.
const BRIDGE_VLAN_INFO: u16 = 2;

#[cfg(test)]
mod tests {
    use nix::libc::RTM_NEWLINK;

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
            let message = Message::new(RTM_NEWLINK, &asked.message(VlanCarrier::Port(7)));
            assert_eq!(PortVlans::read(&message), [asked]);
        }
    }

    #[test]
    fn range_is_two_entries_with_its_bounds() {
        let infos = vlans(200, 299, Tagging::Tagged).infos();
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
