//! The table `cni-portmap`: its chains and sets, and the elements that each attachment adds.
//!
//! All attachments share the chains and rules, with one exception: attachments with different
//! conditions (`conditionsV4`, `conditionsV6`) have different chains that check these conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;
use netlink::Link;
use nft::{Chain, Element, Family, Field, Hook, IpVersion, Operator, Rule, Table, Value};

use crate::conditions::Conditions;
use crate::config::SourceNat;
use crate::element::{condition_element, port_element};
use crate::names::{self, LINKS, LOCALHOST, PAIRS, PODS, conditions, sets, translate};
use crate::networks::{LINK_LOCAL, LOCALNET};
use crate::plan::Plan;
use crate::subject::padded;

/// The elements that an attachment wants, and the table that they need.
#[derive(Debug)]
pub(crate) struct DesiredElements {
    /// The attachment's tag, which is the comment of its elements.
    pub owner: String,
    /// The table, including the chains of conditions that the elements point to.
    pub table: Table,
    /// The wanted elements.
    pub elements: Vec<Element>,
}

/// Returns the elements that `plan` needs, with the table. `links` lists each of the container's
/// addresses with the host's link towards this address.
pub(crate) fn desired(plan: &Plan, links: &[(IpAddr, Link)], owner: String) -> DesiredElements {
    let config = &plan.config;
    let mut elements = Vec::new();
    let versions: BTreeSet<_> = plan.forwards.iter().map(|it| it.port.version).collect();
    let chains = versions.into_iter().filter_map(|version| {
        let chain = condition_chain(version, &config.conditions)?;
        Some((version, chain))
    });
    let chains: BTreeMap<_, _> = chains.collect();
    for forward in &plan.forwards {
        let to = [
            Value::Address(forward.pod),
            Value::Port(forward.container_port),
        ];
        elements.push(port_element(forward.port, &owner).to_values(&to));
        if let Some(chain) = chains.get(&forward.port.version) {
            elements.push(condition_element(forward.port, &owner).to_chain(&chain.name));
        }
    }
    let table = with_chains(chains.into_values());
    for pod in plan.pods() {
        elements.extend(masquerade(pod, config.source_nat, links, &owner));
    }
    DesiredElements {
        owner,
        table,
        elements,
    }
}

/// Returns the elements that masquerade clients of the container `pod`. `source_nat` determines
/// which clients are masqueraded. For [`SourceNat::None`], returns none.
fn masquerade(
    pod: IpAddr,
    source_nat: SourceNat,
    links: &[(IpAddr, Link)],
    owner: &str,
) -> Vec<Element> {
    let version = IpVersion::of(pod);
    let to = Value::Address(pod);
    let mut elements = Vec::new();
    if source_nat == SourceNat::None {
        return elements;
    }
    elements.push(Element::new(PAIRS.of(version), &[to, to], owner));
    if version == IpVersion::V4 {
        elements.push(Element::new(LOCALHOST, &[to], owner));
    }
    let links = links.iter().filter(|(address, _)| *address == pod);
    elements.extend(links.map(|(_, link)| {
        let key = [Value::InterfaceName(&link.name), to];
        Element::new(LINKS.of(version), &key, owner)
    }));
    if source_nat == SourceNat::All {
        elements.push(Element::new(PODS.of(version), &[to], owner));
    }
    elements
}

/// Returns the chain that forwards only packets of `version` that meet `conditions`; `None` without
/// conditions for this version.
pub(crate) fn condition_chain(version: IpVersion, conditions: &Conditions) -> Option<Chain> {
    let rules = conditions.rules(version, TRANSLATE)?;
    let name = format!("conditions-{}", conditions.hash(version));
    Some(Chain::regular(name, rules))
}

/// Returns portmap's [`table`] with the additional `chains`, each of them once.
pub(crate) fn with_chains(chains: impl IntoIterator<Item = Chain>) -> Table {
    let mut table = table();
    for chain in chains {
        if table.chains.iter().all(|it| it.name != chain.name) {
            table.chains.push(chain);
        }
    }
    table
}

/// Returns portmap's table with all sets, and all chains except those that check conditions.
pub(crate) fn table() -> Table {
    let to_host = || {
        let rule = Rule::new("what is for the host itself");
        vec![rule.when_to_host().goto(HOST_PORTS)]
    };
    let versions = IpVersion::ALL.into_iter();
    let masquerade = versions.clone().flat_map(names::masquerade).collect();
    Table {
        chains: vec![
            martians(Family::Inet),
            Chain::nat("prerouting", Hook::Prerouting, AFTER_KUBE_PROXY, to_host()),
            Chain::nat("output", Hook::Output, AFTER_KUBE_PROXY, to_host()),
            Chain::regular(HOST_PORTS, lookups()),
            Chain::regular(TRANSLATE, versions.flat_map(translate).collect()),
            Chain::nat("postrouting", Hook::Postrouting, SOURCE_NAT, masquerade),
        ],
        ..without_chains()
    }
}

/// Returns portmap's table with its sets only, for a removal of elements. A removal needs no rules,
/// and building them would take longer than its transaction.
pub(crate) fn without_chains() -> Table {
    Table {
        family: Family::Inet,
        name: TABLE,
        sets: IpVersion::ALL.into_iter().flat_map(sets).collect(),
        chains: Vec::new(),
    }
}

/// Returns the chain that drops packets of other hosts to and from 127.0.0.0/8, for a table of this
/// family (`inet` or `ip`). With `route_localnet`, such packets would reach services that listen only
/// on 127.0.0.1 (CVE-2020-8558).
pub(crate) fn martians(family: Family) -> Chain {
    // All packets that the host receives pass these rules. Each rule compares the address first, even
    // before the IP version, because almost no packet has such a byte.
    let rules = [Field::Destination, Field::Source].map(|side| {
        let rule = Rule::new(LOCALNET_COMMENT).within(side, Operator::Equal, LOCALNET);
        let rule = match family {
            Family::Inet => rule.when_ip(IpVersion::V4),
            _ => rule,
        };
        rule.unless(Field::InputName, &padded("lo")).drop()
    });
    Chain::filter(
        LOCALNET_CHAIN,
        Hook::Prerouting,
        BEFORE_TRACKING,
        rules.to_vec(),
    )
}

/// Returns the rules that decide which packets for the host are looked up in the sets of ports.
fn lookups() -> Vec<Rule> {
    let localhost = Rule::new("an answer to ::1 never finds back");
    let localhost = localhost.when_to(IpNetwork::from(IpAddr::from(Ipv6Addr::LOCALHOST)));
    let link_local = LINK_LOCAL.map(|it| {
        let rule = Rule::new("link-local addresses are the host's own");
        rule.when_to(it).return_to_caller()
    });
    let conditions = IpVersion::ALL.into_iter().flat_map(conditions);
    let all = Rule::new("ports of networks without conditions").goto(TRANSLATE);
    [localhost.return_to_caller()]
        .into_iter()
        .chain(link_local)
        .chain(conditions)
        .chain([all])
        .collect()
}

/// Returns the tables in which attachments have elements.
pub fn tables() -> [Table; 1] {
    [table()]
}

/// The name of portmap's table, of family `inet`.
pub const TABLE: &str = "cni-portmap";

/// The chain that drops packets between 127.0.0.0/8 and other hosts: one rule for packets to
/// 127.0.0.0/8, one for packets from there.
pub const LOCALNET_CHAIN: &str = "martians";

/// Start of the comment of each rule in [`LOCALNET_CHAIN`]. A digest and the rule's place follow.
pub const LOCALNET_COMMENT: &str = "127.0.0.0/8 is within the host";

const HOST_PORTS: &str = "host-ports";
const TRANSLATE: &str = "translate";

/// Priority of [`LOCALNET_CHAIN`], before connection tracking (`NF_IP_PRI_RAW`).
const BEFORE_TRACKING: i32 = -300;

/// Priority of the chains that translate destinations: `NF_IP_PRI_NAT_DST` + 10, so that
/// kube-proxy's chain runs first. At equal priorities, the kernel would first run the chain that
/// was created last (CVE-2019-9946).
const AFTER_KUBE_PROXY: i32 = -90;

/// Priority of chains that translate source addresses (`NF_IP_PRI_NAT_SRC`).
const SOURCE_NAT: i32 = 100;
