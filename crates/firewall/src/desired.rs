//! What an attachment shall have: elements of the plugin's table, and the rules that accept its mark.

use std::net::IpAddr;

use cni::result::Interface;
use cni::{Attachment, Error, InterfaceName};
use nft::{Element, Family, Standing, Table, Value};

use crate::config::{Config, IngressPolicy};
use crate::legacy::Legacy;
use crate::permission::standing;
use crate::table::{
    BRIDGE_PAIRS, BRIDGES, ISOLATED_MEMBERS, ISOLATED_PAIRS, MEMBERS, PODS_V4, PODS_V6, table,
};

/// What an attachment shall have.
#[derive(Debug)]
pub(crate) struct Desired {
    /// The plugin's table.
    pub table: Table,
    /// The attachment's elements, and those that its bridge's members share, which have no owner.
    pub elements: Vec<Element>,
    /// The rules in tables of iptables, for each family of its addresses.
    pub standing: Vec<Standing>,
    /// The same rules for legacy iptables, where that is in use.
    pub legacy: Vec<Legacy>,
}

impl Desired {
    /// Returns what `attachment` with this result of the previous plugins shall have.
    ///
    /// # Errors
    /// Code 7: `ingressPolicy` needs a bridge, and the first interface is none.
    pub fn new(
        config: &Config,
        attachment: &Attachment,
        result: &cni::AddResult,
    ) -> Result<Self, Error> {
        let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address.ip()).collect();
        let mut desired = Self::permission(config, &attachment.owner(), &addresses);
        if config.ingress_policy != IngressPolicy::Open {
            let bridge = bridge(config.ingress_policy, result.interfaces.first())?;
            let elements = of_bridge(config.ingress_policy, attachment, bridge.as_str());
            desired.elements.extend(elements);
        }
        Ok(desired)
    }

    /// Returns what an attachment with these addresses needs for permission.
    pub fn permission(config: &Config, owner: &str, addresses: &[IpAddr]) -> Self {
        let elements = addresses.iter().map(|address| {
            let set = if address.is_ipv4() { PODS_V4 } else { PODS_V6 };
            Element::new(set, &[Value::Address(*address)], owner)
        });
        let has = |is_v4| addresses.iter().any(|it| it.is_ipv4() == is_v4);
        let families = [(Family::Ipv4, has(true)), (Family::Ipv6, has(false))];
        let families = || families.iter().filter(|it| it.1).map(|it| it.0);
        Self {
            table: table(config.mark),
            elements: elements.collect(),
            standing: families().map(|it| standing(it, config)).collect(),
            legacy: families().map(|it| Legacy::new(it, config)).collect(),
        }
    }
}

/// Returns the elements of a member of a bridge, and those of the bridge.
fn of_bridge(policy: IngressPolicy, attachment: &Attachment, bridge: &str) -> [Element; 3] {
    let (members, pairs) = match policy {
        IngressPolicy::Isolated => (ISOLATED_MEMBERS, ISOLATED_PAIRS),
        IngressPolicy::Open | IngressPolicy::SameBridge => (MEMBERS, BRIDGE_PAIRS),
    };
    let member = cni::hex(&attachment.digest(), MEMBER_DIGITS);
    let [member, bridge] = [&member, bridge].map(Value::InterfaceName);
    [
        Element::new(members, &[member, bridge], &attachment.owner()),
        Element::new(pairs, &[bridge, bridge], ""),
        Element::new(BRIDGES, &[bridge], ""),
    ]
}

/// Returns the elements without an owner that no member of `elements` needs.
pub(crate) fn unneeded(table: &Table, elements: &[Element]) -> Vec<Element> {
    let is_needed = |shared: &Element| {
        let members: &[&str] = match shared.set.as_str() {
            BRIDGE_PAIRS => &[MEMBERS],
            ISOLATED_PAIRS => &[ISOLATED_MEMBERS],
            _ => &[MEMBERS, ISOLATED_MEMBERS],
        };
        let is_member = |it: &&Element| members.contains(&it.set.as_str());
        let mut members = elements.iter().filter(is_member);
        members.any(|it| bridge_of(table, it) == bridge_of(table, shared))
    };
    let shared = elements.iter().filter(|it| is_shared(it));
    shared.filter(|it| !is_needed(it)).cloned().collect()
}

/// Returns whether the element belongs to a bridge instead of an attachment.
pub fn is_shared(element: &Element) -> bool {
    let sets = [BRIDGES, BRIDGE_PAIRS, ISOLATED_PAIRS];
    element.owner.is_empty() && sets.contains(&element.set.as_str())
}

/// Returns the last part of an element's key: the bridge.
fn bridge_of<'a>(table: &Table, element: &'a Element) -> Option<Value<'a>> {
    let set = table.sets.iter().find(|it| it.name == element.set)?;
    element.key(set).pop()
}

fn bridge(policy: IngressPolicy, first: Option<&Interface>) -> Result<InterfaceName, Error> {
    let on_host = first.filter(|it| it.sandbox.as_deref().unwrap_or_default().is_empty());
    let name = on_host.and_then(|it| it.name.parse().ok());
    name.ok_or_else(|| {
        let policy = match policy {
            IngressPolicy::Isolated => "isolated",
            IngressPolicy::Open | IngressPolicy::SameBridge => "same-bridge",
        };
        let reason = format!(
            "{policy:?} needs a bridge as the first interface of prevResult; put the plugin behind `bridge`, with cniVersion 0.3.0 or later"
        );
        Error::invalid("ingressPolicy", reason)
    })
}

/// As many as a part of the key holds.
const MEMBER_DIGITS: usize = 15;
