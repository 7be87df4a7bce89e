//! The VLANs of a port.

use std::fmt;
use std::ops::RangeInclusive;

use cni::{Error, InterfaceName};
use netlink::{Connection, Link, LinkChange, PortVlans, Request, Tagging};

use crate::raw::RawTrunk;

/// The VLANs that a port carries beside the bridge's default one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Vlans {
    /// The bridge need not filter.
    #[default]
    None,
    /// `vlan`: the container knows nothing of it.
    Access(Access),
    /// `vlanTrunk`: the container tags its frames.
    Trunk(Vec<RangeInclusive<u16>>),
}

/// One VLAN, untagged at the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    /// 1 to 4094.
    pub vlan: u16,
    /// `<bridge>.<vlan>`: the host's end, where the bridge itself is none.
    pub gateway_link: InterfaceName,
}

/// Whether the port stays in the VLAN that the bridge puts every port into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultVlan {
    /// `preserveDefaultVlan`.
    Keep,
    /// It carries nothing but what was asked for.
    Leave,
}

/// The keys as they are written.
#[derive(Debug, Default)]
pub(crate) struct RawVlans {
    pub vlan: i64,
    pub trunk: Vec<RawTrunk>,
}

impl Vlans {
    /// Reads `vlan` and `vlanTrunk` for a port of `bridge`.
    ///
    /// # Errors
    /// Code 7: a number out of range, half a range, both keys at once, or no room for the name
    /// of the VLAN's link.
    pub fn parse(raw: &RawVlans, bridge: &InterfaceName) -> Result<Self, Error> {
        match (raw.vlan, raw.trunk.as_slice()) {
            (0, []) => Ok(Self::None),
            (0, trunk) => trunk_ranges(trunk).map(Self::Trunk),
            (vlan, []) => {
                let vlan = number(vlan, "vlan")?;
                let name = format!("{bridge}.{vlan}");
                let gateway_link = name.parse().map_err(|_| {
                    let reason = format!("{name}, its interface on the host, would have more than 15 bytes; shorten the name of the bridge");
                    Error::invalid("vlan", reason)
                })?;
                Ok(Self::Access(Access { vlan, gateway_link }))
            }
            (vlan, _) => Err(Error::invalid(
                "vlanTrunk",
                format!("it excludes vlan: {vlan}; choose one of them"),
            )),
        }
    }

    /// What the port carries.
    pub fn of_port(&self) -> Vec<PortVlans> {
        match self {
            Self::None => Vec::new(),
            Self::Access(access) => vec![PortVlans {
                first: access.vlan,
                last: access.vlan,
                tagging: Tagging::Access,
            }],
            Self::Trunk(ranges) => {
                let vlans = ranges.iter().map(|range| PortVlans {
                    first: *range.start(),
                    last: *range.end(),
                    tagging: Tagging::Tagged,
                });
                vlans.collect()
            }
        }
    }

    /// The key that asked for them.
    fn key(&self) -> &'static str {
        match self {
            Self::Trunk(_) => "vlanTrunk",
            Self::None | Self::Access(_) => "vlan",
        }
    }
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vlans: Vec<_> = self.of_port().iter().map(ToString::to_string).collect();
        f.write_str(&vlans.join(", "))
    }
}

fn trunk_ranges(trunk: &[RawTrunk]) -> Result<Vec<RangeInclusive<u16>>, Error> {
    let mut ranges = Vec::new();
    for (index, entry) in trunk.iter().enumerate() {
        let at = format!("vlanTrunk[{index}]");
        if let Some(id) = entry.id {
            let id = number(id, &format!("{at}.id"))?;
            ranges.push(id..=id);
        }
        match (entry.min_id, entry.max_id) {
            (Some(min), Some(max)) => {
                let (min, max) = (
                    number(min, &format!("{at}.minID"))?,
                    number(max, &format!("{at}.maxID"))?,
                );
                if min > max {
                    let reason = format!("{min} is more than maxID {max}");
                    return Err(Error::invalid(format!("{at}.minID"), reason));
                }
                ranges.push(min..=max);
            }
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

/// 0 and 4095 are reserved (IEEE 802.1Q).
const VLANS: RangeInclusive<u16> = 1..=4094;

/// Has the bridge pass on each port only the VLANs that it carries; what is a port already
/// goes on in the default VLAN.
///
/// # Errors
/// Code 2: the kernel cannot.
pub(crate) fn ensure_filtering(
    host: &Connection,
    bridge: Link,
    vlans: &Vlans,
) -> anyhow::Result<Link> {
    if *vlans == Vlans::None || is_filtering(&bridge) {
        return Ok(bridge);
    }
    let filter = Request::change_link(&bridge.name, &LinkChange::VlanFiltering);
    match host.execute(vec![filter]) {
        Err(error) if error.is_not_supported() => anyhow::bail!(Error::UnsupportedField {
            key: vlans.key().to_owned(),
            value: vlans.to_string(),
            reason: "this host's kernel was built without CONFIG_BRIDGE_VLAN_FILTERING".to_owned(),
        }),
        filtered => filtered?,
    }
    Ok(host.link(&bridge.name)?)
}

/// The bridge passes on each port only the VLANs that it carries.
pub(crate) fn is_filtering(bridge: &Link) -> bool {
    bridge.bridge_vlans.is_some_and(|vlans| vlans.filtering)
}

/// What makes `port` of `bridge` carry `vlans`.
pub(crate) fn port_requests(
    (bridge, port): (&Link, &Link),
    vlans: &Vlans,
    default: DefaultVlan,
) -> Vec<Request> {
    let wanted = vlans.of_port();
    let left = default_vlan(bridge).filter(|_| default == DefaultVlan::Leave && !wanted.is_empty());
    let leave = left.map(|left| Request::delete_port_vlans(port.index, left));
    let join = wanted
        .into_iter()
        .map(|vlans| Request::add_port_vlans(port.index, vlans));
    leave.into_iter().chain(join).collect()
}

/// The VLAN that a bridge puts every port into.
pub(crate) fn default_vlan(bridge: &Link) -> Option<PortVlans> {
    let default = bridge.bridge_vlans.map(|vlans| vlans.default);
    let default = default.filter(|vlan| *vlan != 0)?;
    Some(PortVlans {
        first: default,
        last: default,
        tagging: Tagging::Access,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(vlan: i64, trunk: &Value) -> Result<Vlans, Error> {
        let trunk = serde_json::from_value(trunk.clone()).unwrap();
        Vlans::parse(&RawVlans { vlan, trunk }, &"cni0".parse().unwrap())
    }

    fn trunk(entries: &Value) -> Vec<RangeInclusive<u16>> {
        match parse(0, entries).unwrap() {
            Vlans::Trunk(ranges) => ranges,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn port_is_in_one_vlan_or_carries_many_or_neither() {
        assert_eq!(parse(0, &json!([])).unwrap(), Vlans::None);
        let access = parse(100, &json!([])).unwrap();
        let gateway_link = "cni0.100".parse().unwrap();
        let vlan = 100;
        assert_eq!(access, Vlans::Access(Access { vlan, gateway_link }));
        let entries =
            json!([{"id": 101}, {"minID": 200, "maxID": 299}, {"id": 5, "minID": 7, "maxID": 7}]);
        assert_eq!(trunk(&entries), [101..=101, 200..=299, 5..=5, 7..=7]);
    }

    #[test]
    fn what_is_no_vlan_is_refused_with_its_key() {
        for (vlan, trunk, key) in [
            (-1, json!([]), "vlan"),
            (4095, json!([]), "vlan"),
            (100, json!([{"id": 5}]), "vlanTrunk"),
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
        let raw = RawVlans {
            vlan: 1000,
            trunk: Vec::new(),
        };
        for (bridge, fits) in [("br-of-pods", true), ("br-of-pods1", false)] {
            let parsed = Vlans::parse(&raw, &bridge.parse().unwrap());
            assert_eq!(parsed.is_ok(), fits, "{bridge}");
        }
    }
}
