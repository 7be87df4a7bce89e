//! VLANs of a container's port on the bridge, and VLAN filtering of the bridge.

use std::ops::RangeInclusive;

use attach::PortVlanSet;
use cni::{Error, InterfaceName};
use netlink::{Connection, Link, LinkChange, LinkKind, PortVlans, Request, Tagging};

use crate::nf_call::is_tagged;
use crate::raw::RawTrunk;

/// The configured VLANs of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vlans {
    /// `vlan`: the VLAN of the container's untagged frames.
    pub access: Option<Access>,
    /// `vlanTrunk`: the VLANs of the container's tagged frames.
    pub trunk: Vec<RangeInclusive<u16>>,
}

/// A VLAN whose frames are untagged at the container's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Number of the VLAN, 1 to 4094.
    pub vlan: u16,
    /// `<bridge>.<vlan>`: the host's link that has the gateway addresses, unless the bridge itself
    /// has them.
    pub gateway_link: InterfaceName,
}

/// Whether the container's port stays in the bridge's default VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultVlan {
    /// `preserveDefaultVlan`: the port stays in the default VLAN.
    Keep,
    /// The port leaves the default VLAN and carries only the configured VLANs. If the network has a
    /// trunk without VLAN 1, and no `vlan`, the port also carries VLAN 1 untagged, as in the Go
    /// plugin `bridge`.
    Leave,
}

impl Vlans {
    /// Parses `vlan` and `vlanTrunk` for a port of `bridge`.
    ///
    /// # Errors
    /// Code 7: a number is out of range, a range is incomplete, or the VLAN link's name is too
    /// long.
    pub fn parse(vlan: i64, trunk: &[RawTrunk], bridge: &InterfaceName) -> Result<Self, Error> {
        let access = match vlan {
            0 => None,
            vlan => Some(Access::parse(vlan, bridge)?),
        };
        let trunk = trunk_ranges(trunk)?;
        Ok(Self { access, trunk })
    }

    /// Returns whether the network configures no VLAN. The bridge then need not filter by VLAN.
    pub fn is_empty(&self) -> bool {
        self.access.is_none() && self.trunk.is_empty()
    }

    /// Returns the key that configures VLANs.
    fn key(&self) -> &'static str {
        self.access.as_ref().map_or("vlanTrunk", |_| "vlan")
    }

    /// Returns the VLANs of the keys `vlan` and `vlanTrunk`, with their tagging. CHECK requires
    /// that the container's port carries them.
    fn asked(&self) -> Vec<PortVlans> {
        let native = self.access.as_ref().map(|it| it.vlan);
        let trunk = self.trunk.iter().flat_map(|range| without(range, native));
        let trunk = trunk.map(|range| PortVlans {
            first: *range.start(),
            last: *range.end(),
            tagging: Tagging::Tagged,
        });
        native.map(untagged).into_iter().chain(trunk).collect()
    }

    /// Returns the VLANs that ADD configures on a port. Returns `None` if the network configures no
    /// VLAN. `bridge_default` is the bridge's default VLAN.
    ///
    /// VLAN 1 becomes the native (untagged) VLAN of the port if three conditions are true: the port
    /// leaves the default VLAN, the network has no `vlan`, and the trunk does not contain VLAN 1.
    pub fn of_port(
        &self,
        default: DefaultVlan,
        bridge_default: Option<PortVlans>,
    ) -> Option<PortVlanSet> {
        if self.is_empty() {
            return None;
        }
        let is_left = default == DefaultVlan::Leave;
        let is_tagged = self.trunk.iter().any(|range| range.contains(&NATIVE));
        let has_native = self.access.is_some() || is_tagged;
        Some(PortVlanSet {
            carried: self.asked(),
            native: (is_left && !has_native).then(|| untagged(NATIVE)),
            left: bridge_default.filter(|_| is_left),
        })
    }
}

impl Access {
    fn parse(vlan: i64, bridge: &InterfaceName) -> Result<Self, Error> {
        let vlan = number(vlan, "vlan")?;
        let name = format!("{bridge}.{vlan}");
        let gateway_link = name.parse().map_err(|_| {
            let reason = format!("{name}, its interface on the host, would have more than 15 bytes; shorten the name of the bridge");
            Error::invalid("vlan", reason)
        })?;
        Ok(Self { vlan, gateway_link })
    }
}

/// Returns `vlan` as a VLAN whose frames a port receives and sends without a tag.
fn untagged(vlan: u16) -> PortVlans {
    PortVlans::one(vlan, Tagging::Access)
}

/// Returns `range`, the tagged VLANs of a port, without `native`, its untagged VLAN. A port cannot
/// carry a VLAN both tagged and untagged. Returns zero to two ranges.
fn without(
    range: &RangeInclusive<u16>,
    native: Option<u16>,
) -> impl Iterator<Item = RangeInclusive<u16>> {
    let (first, last) = range.clone().into_inner();
    let parts = match native.filter(|it| range.contains(it)) {
        None => vec![first..=last],
        Some(native) => vec![first..=native - 1, native + 1..=last],
    };
    parts.into_iter().filter(|part| !part.is_empty())
}

fn trunk_ranges(trunk: &[RawTrunk]) -> Result<Vec<RangeInclusive<u16>>, Error> {
    let mut ranges = Vec::new();
    for (index, entry) in trunk.iter().enumerate() {
        let at = format!("vlanTrunk[{index}]");
        let bound = |vlan: Option<i64>, key| {
            let number = |vlan| number(vlan, &format!("{at}.{key}"));
            vlan.map(number).transpose()
        };
        ranges.extend(bound(entry.id, "id")?.map(|id| id..=id));
        match (bound(entry.min_id, "minID")?, bound(entry.max_id, "maxID")?) {
            (Some(min), Some(max)) if min > max => {
                let reason = format!("{min} is more than maxID {max}");
                return Err(Error::invalid(format!("{at}.minID"), reason));
            }
            (Some(min), Some(max)) => ranges.push(min..=max),
            (None, None) if entry.id.is_some() => {}
            _ => {
                let reason = "an entry has an id, or a minID and a maxID";
                return Err(Error::invalid(at, reason));
            }
        }
    }
    Ok(ranges)
}

fn number(vlan: i64, key: &str) -> Result<u16, Error> {
    let number = u16::try_from(vlan).ok().filter(|it| VLANS.contains(it));
    number.ok_or_else(|| Error::invalid(key, format!("{vlan} is no VLAN; they are 1 to 4094")))
}

/// Valid VLAN numbers. 0 and 4095 are reserved (IEEE 802.1Q).
const VLANS: RangeInclusive<u16> = 1..=4094;

/// The untagged VLAN of a trunk without `vlan`, as in the Go plugin `bridge`.
const NATIVE: u16 = 1;

/// Enables VLAN filtering on the bridge if the network configures VLANs. Returns the new state of
/// the bridge. Its existing ports stay in its default VLAN, so their untagged frames still pass.
///
/// # Errors
/// Code 2: the kernel does not support VLAN filtering.
pub(crate) fn ensure_filtering(
    host: &Connection,
    bridge: Link,
    vlans: &Vlans,
) -> anyhow::Result<Link> {
    if vlans.is_empty() || is_filtering(&bridge) {
        return Ok(bridge);
    }
    let filter = Request::change_link(&bridge.name, &LinkChange::VlanFiltering);
    let filtered = host.execute(vec![filter]);
    filtered.map_err(|it| refusal(it, vlans))?;
    Ok(host.link(&bridge.name)?)
}

/// Checks that the bridge filters VLANs, or that ADD may change that.
///
/// # Errors
/// Code 7: a port may have tagged frames, which a filter would drop: an uplink, or that of a virtual
/// machine.
pub(crate) fn expect_filterable(
    host: &Connection,
    bridge: &Link,
    vlans: &Vlans,
) -> anyhow::Result<()> {
    if vlans.is_empty() || is_filtering(bridge) {
        return Ok(());
    }
    let mut ports = host.ports(bridge.index)?.into_iter();
    let may_tag = |it: &Link| !matches!(it.kind, LinkKind::Veth | LinkKind::Dummy);
    let Some(port) = ports.find(|it| may_tag(it) && !is_tagged(it)) else {
        return Ok(());
    };
    let (name, port) = (&bridge.name, port.name);
    let reason = format!(
        "{name} does not filter VLANs, and a filter would drop tagged frames of its port {port}; give \
         that port its VLANs (bridge vlan add dev {port} vid …), then: ip link set {name} type bridge \
         vlan_filtering 1"
    );
    Err(Error::invalid(vlans.key(), reason).into())
}

/// Returns the error of a bridge that has to filter VLANs. Names the configured VLANs if the kernel
/// does not support that.
pub(crate) fn refusal(error: netlink::Error, vlans: &Vlans) -> anyhow::Error {
    if vlans.is_empty() || !error.is_not_supported() {
        return error.into();
    }
    let key = vlans.key();
    let asked: Vec<_> = vlans.asked().iter().map(ToString::to_string).collect();
    let refusal = Error::UnsupportedField {
        key: key.to_owned(),
        value: asked.join(", "),
        reason: "this host's kernel was built without CONFIG_BRIDGE_VLAN_FILTERING".to_owned(),
    };
    refusal.into()
}

pub(crate) fn is_filtering(bridge: &Link) -> bool {
    bridge.bridge_vlans.is_some_and(|vlans| vlans.filtering)
}

/// Returns the bridge's default VLAN, which the kernel gives to new ports; `None` if there is none.
pub(crate) fn default_vlan(bridge: &Link) -> Option<PortVlans> {
    let default = bridge.bridge_vlans.map(|vlans| vlans.default);
    default.filter(|vlan| *vlan != 0).map(untagged)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(vlan: i64, trunk: &Value) -> Result<Vlans, Error> {
        let trunk: Vec<RawTrunk> = serde_json::from_value(trunk.clone()).unwrap();
        Vlans::parse(vlan, &trunk, &"cni0".parse().unwrap())
    }

    /// For the tests: returns the VLANs that ADD configures on a port, as a text.
    fn carried(vlan: i64, trunk: &Value, default: DefaultVlan) -> String {
        let vlans = parse(vlan, trunk).unwrap().of_port(default, None);
        let PortVlanSet {
            carried, native, ..
        } = vlans.unwrap_or_default();
        let all = native.iter().chain(&carried);
        let words = all.map(|it| format!("{it} {:?}", it.tagging));
        words.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn port_is_in_one_vlan_or_carries_many_or_both_or_neither() {
        let many =
            json!([{"id": 101}, {"minID": 200, "maxID": 299}, {"id": 5, "minID": 7, "maxID": 7}]);
        let tagged = "VLAN 101 Tagged, VLANs 200 to 299 Tagged, VLAN 5 Tagged, VLAN 7 Tagged";
        for (vlan, trunk, untagged) in [
            (0, json!([]), ""),
            (100, json!([]), "VLAN 100 Access"),
            (0, many.clone(), "VLAN 1 Access, "),
            (100, many, "VLAN 100 Access, "),
        ] {
            let trunk_words = if trunk == json!([]) { "" } else { tagged };
            let expected = format!("{untagged}{trunk_words}");
            assert_eq!(carried(vlan, &trunk, DefaultVlan::Leave), expected);
        }
        assert!(parse(0, &json!([])).unwrap().is_empty());
    }

    #[test]
    fn trunk_without_vlan_has_no_native_one_of_its_own_in_the_default_vlan() {
        let trunk = json!([{"minID": 2, "maxID": 4094}]);
        let kept = carried(0, &trunk, DefaultVlan::Keep);
        assert_eq!(kept, "VLANs 2 to 4094 Tagged");
        let all = json!([{"minID": 1, "maxID": 4094}]);
        let tagged = carried(0, &all, DefaultVlan::Leave);
        assert_eq!(tagged, "VLANs 1 to 4094 Tagged");
    }

    #[test]
    fn native_vlan_is_untagged_where_the_trunk_names_it_too() {
        for (range, rest) in [
            ((100, 100), ""),
            ((99, 101), ", VLAN 99 Tagged, VLAN 101 Tagged"),
            ((100, 102), ", VLANs 101 to 102 Tagged"),
            ((1, 100), ", VLANs 1 to 99 Tagged"),
        ] {
            let trunk = json!([{"minID": range.0, "maxID": range.1}]);
            let expected = format!("VLAN 100 Access{rest}");
            assert_eq!(carried(100, &trunk, DefaultVlan::Leave), expected);
        }
    }

    #[test]
    fn what_is_no_vlan_is_refused_with_its_key() {
        for (vlan, trunk, key) in [
            (-1, json!([]), "vlan"),
            (4095, json!([]), "vlan"),
            (100, json!([{"id": 4095}]), "vlanTrunk[0].id"),
            (0, json!([{"id": 0}]), "vlanTrunk[0].id"),
            (0, json!([{"id": 5}, {}]), "vlanTrunk[1]"),
            (0, json!([{"minID": 5}]), "vlanTrunk[0]"),
            (0, json!([{"minID": 9, "maxID": 5}]), "vlanTrunk[0].minID"),
            (
                0,
                json!([{"minID": 9, "maxID": 4095}]),
                "vlanTrunk[0].maxID",
            ),
        ] {
            let error = parse(vlan, &trunk).unwrap_err();
            assert_eq!(error.code(), 7);
            assert!(
                error.to_string().starts_with(&format!("{key}: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn vlan_whose_link_would_have_too_long_a_name_is_refused() {
        for (bridge, fits) in [("br-of-pods", true), ("br-of-pods1", false)] {
            let parsed = Vlans::parse(1000, &[], &bridge.parse().unwrap());
            assert_eq!(parsed.is_ok(), fits, "{bridge}");
        }
    }
}
