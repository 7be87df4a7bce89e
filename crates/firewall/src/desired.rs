//! The desired state of an attachment: elements of the plugin's tables, and the rules of iptables
//! that accept packets with the plugin's fwmark.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::{Attachment, Error, InterfaceName};
use nft::{Element, Family, RequiredRules, Table, Value};

use crate::Config;
use crate::config::IngressPolicy;
use crate::legacy::Legacy;
use crate::permission::required;
use crate::table::{
    BRIDGE_PAIRS, BRIDGES, ISOLATED_MEMBERS, ISOLATED_PAIRS, ISOLATED_PORTS, MEMBERS, PODS_V4,
    PODS_V6, frames, table,
};

#[derive(Debug)]
pub(crate) struct Desired {
    /// The plugin's table of family `inet`.
    pub table: Table,
    /// The attachment's elements in `table`. Some may have no owner ([`is_shared`]): all
    /// attachments on the same bridge share them.
    pub elements: Vec<Element>,
    /// The attachment's elements in the table of family `bridge`, which isolates ports.
    pub ports: Vec<Element>,
    /// The rules of iptables that accept packets with the fwmark, for each IP family of the
    /// attachment's addresses. The plugin adds them over netlink.
    pub required: Vec<RequiredRules>,
    /// The rules of legacy iptables that accept packets with the fwmark. The plugin adds them only
    /// where legacy iptables is in use.
    pub legacy: Vec<Legacy>,
}

impl Desired {
    /// Returns the desired state of `attachment`. `result` comes from the previous plugins.
    ///
    /// # Errors
    /// Code 7: `ingressPolicy` needs a bridge, and the first interface of `result` is not one of
    /// the host.
    pub fn new(
        config: &Config,
        attachment: &Attachment,
        result: &cni::AddResult,
    ) -> Result<Self, Error> {
        let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address.ip()).collect();
        let mut desired = Self::permission(config, &attachment.owner(), &addresses);
        if let Some(bridge) = bridge(config.ingress_policy, result)? {
            for link in routed_links(bridge.as_str(), result) {
                let elements = of_bridge(config.ingress_policy, attachment, link);
                desired.elements.extend(elements);
            }
            if config.ingress_policy == IngressPolicy::Isolated {
                desired.ports = ports(bridge.as_str(), attachment, result);
            }
        }
        Ok(desired)
    }

    /// Returns the desired state that lets packets from and to `addresses` pass the host's
    /// firewall. Its elements are tagged with `owner`.
    pub fn permission(config: &Config, owner: &str, addresses: &[IpAddr]) -> Self {
        // The list may contain an address twice, for example if two interfaces in different VRFs
        // have it.
        let addresses: BTreeSet<_> = addresses.iter().collect();
        let elements = addresses.iter().map(|it| permission(owner, **it));
        let has = |is_v4| addresses.iter().any(|it| it.is_ipv4() == is_v4);
        let families = [(Family::Ipv4, has(true)), (Family::Ipv6, has(false))];
        let families = || families.iter().filter(|it| it.1).map(|it| it.0);
        Self {
            table: table(config.mark),
            elements: elements.collect(),
            ports: Vec::new(),
            required: families().map(|it| required(it, config)).collect(),
            legacy: families().map(|it| Legacy::new(it, config)).collect(),
        }
    }

    /// Returns the plugin's tables in which the attachment has elements, each with these elements.
    pub fn parts(&self) -> impl Iterator<Item = (Table, &[Element])> {
        let parts = [
            (self.table.clone(), self.elements.as_slice()),
            (frames(), self.ports.as_slice()),
        ];
        parts
            .into_iter()
            .filter(|(_, elements)| !elements.is_empty())
    }
}

/// Returns the links through which packets of the attachment enter and leave the host: the bridge,
/// and the host's link for a VLAN of the bridge. The plugin `bridge` names that link
/// `<bridge>.<vlan>`.
fn routed_links<'a>(bridge: &'a str, result: &'a cni::AddResult) -> impl Iterator<Item = &'a str> {
    let on_host = result.interfaces.iter().filter(|it| it.sandbox.is_none());
    let vlans = on_host.map(|it| it.name.as_str()).filter(move |name| {
        let vlan = name
            .strip_prefix(bridge)
            .and_then(|it| it.strip_prefix('.'));
        vlan.is_some_and(|it| it.parse::<u16>().is_ok())
    });
    [bridge].into_iter().chain(vlans)
}

/// Returns an element for each port of the attachment. The ports are links of the host that
/// `result` lists before the container's interface. The bridge and its VLAN links are no ports,
/// because other attachments share them. Links of the host that come later in the list are no ports
/// either: another plugin added them, for example the ifb of the Go plugin `bandwidth`.
fn ports(bridge: &str, attachment: &Attachment, result: &cni::AddResult) -> Vec<Element> {
    let on_host = result
        .interfaces
        .iter()
        .take_while(|it| it.sandbox.is_none());
    let names = on_host.filter_map(|it| it.name.parse::<InterfaceName>().ok());
    let names = names.filter(|it| routed_links(bridge, result).all(|link| link != it.as_str()));
    let owner = attachment.owner();
    names
        .map(|it| Element::new(ISOLATED_PORTS, &[Value::InterfaceName(it.as_str())], &owner))
        .collect()
}

/// Returns the element that gives three kinds of packets permission: packets from the container's
/// `address`, answers to it, and packets to ports of the host that are forwarded to it.
pub(crate) fn permission(owner: &str, address: IpAddr) -> Element {
    let set = if address.is_ipv4() { PODS_V4 } else { PODS_V6 };
    Element::new(set, &[Value::Address(address)], owner)
}

/// Returns the address in the key of `element`; `None` for elements without an address.
pub(crate) fn address(table: &Table, element: &Element) -> Option<IpAddr> {
    element.key_in(table)?.into_iter().find_map(|it| match it {
        Value::Address(address) => Some(address),
        _ => None,
    })
}

/// Returns three elements. The first records that the attachment is a member of the bridge. The
/// other two apply `policy` to the bridge, and all members share them. `bridge` is the bridge or
/// the host's link for a VLAN of the bridge.
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

/// Returns the shared elements of bridges ([`is_shared`]) that no member of the bridge
/// ([`is_member`]) needs any more. A pair of one policy is needed by members with this policy, an
/// element of [`BRIDGES`] by all members. `elements` are all elements in the sets of bridges.
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

/// Returns whether the element records an attachment as a member of a bridge. The members of a
/// bridge are the attachments that apply an ingress policy to it.
pub(crate) fn is_member(element: &Element) -> bool {
    [MEMBERS, ISOLATED_MEMBERS].contains(&element.set.as_str())
}

/// Returns whether the element belongs to a bridge and not to a single attachment: all attachments
/// on the bridge share such an element.
pub fn is_shared(element: &Element) -> bool {
    let sets = [BRIDGES, BRIDGE_PAIRS, ISOLATED_PAIRS];
    element.owner.is_empty() && sets.contains(&element.set.as_str())
}

/// Returns the bridge of an element, which is the last part of its key; `None` if `table` does not
/// contain the element's set.
fn bridge_of<'a>(table: &Table, element: &'a Element) -> Option<Value<'a>> {
    element.key_in(table)?.pop()
}

/// Returns the bridge to which `policy` applies: the first interface of `result`. Returns `None`
/// for the policy `open`.
///
/// # Errors
/// Code 7: the first interface of `result` is not one of the host.
pub(crate) fn bridge(
    policy: IngressPolicy,
    result: &cni::AddResult,
) -> Result<Option<InterfaceName>, Error> {
    let policy = match policy {
        IngressPolicy::Open => return Ok(None),
        IngressPolicy::SameBridge => "same-bridge",
        IngressPolicy::Isolated => "isolated",
    };
    let first = result.interfaces.first().filter(|it| it.sandbox.is_none());
    let name = first.and_then(|it| it.name.parse().ok());
    name.map(Some).ok_or_else(|| {
        let reason = format!(
            "{policy:?} needs a bridge as the first interface of prevResult; put the plugin behind `bridge`, with cniVersion 0.3.0 or later"
        );
        Error::invalid("ingressPolicy", reason)
    })
}

/// Number of hexadecimal digits that identify an attachment in the key of a member element. This
/// part of the key has the type of an interface name, which has at most 15 characters.
const MEMBER_DIGITS: usize = 15;
