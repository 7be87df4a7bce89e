//! The table `cni-portmap`: what is looked up in it, and what an attachment adds.
//!
//! Chains and rules are the same for everybody, but for a chain for each set of conditions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use netlink::Link;
use nft::{
    Chain, ChainKind, Element, Entry, Family, Field, Hook, IpVersion, Rule, Set, Table, Value,
};

use crate::config::{Config, SourceNat};
use crate::names::{Names, V4, V6, names, network};
use crate::plan::{Forward, HostPort, Plan};

/// What an attachment adds, and the table as it has to be for it.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Whose they are to be.
    pub owner: String,
    /// The table, with the chains that the elements lead to.
    pub table: Table,
    /// For its sets.
    pub elements: Vec<Element>,
}

/// What is asked for by `plan` and `config`, where `links` tells the host's link towards each
/// of the container's addresses.
pub(crate) fn claim(
    plan: &Plan,
    config: &Config,
    links: &[(IpAddr, Link)],
    owner: String,
) -> Claim {
    let mut table = table();
    let mut elements = Vec::new();
    for forward in &plan.forwards {
        let to = [
            Value::Address(forward.pod),
            Value::Port(forward.container_port),
        ];
        elements.push(port_element(forward.port, &owner).to_values(&to));
        let version = forward.port.version;
        let conditions = config.conditions(version);
        if conditions.is_empty() {
            continue;
        }
        let chain = format!("conditions-{}", conditions.hash(version));
        elements.push(condition_element(forward.port, &owner).to_chain(&chain));
        if table.chains.iter().all(|it| it.name != chain) {
            let rule = Rule::new("what the network's ports are for");
            table.chains.push(Chain {
                name: chain,
                entry: None,
                rules: vec![conditions.narrow(rule).goto(TRANSLATE)],
            });
        }
    }
    for pod in plan.pods() {
        elements.extend(masquerade(pod, config.source_nat, links, &owner));
    }
    Claim {
        owner,
        table,
        elements,
    }
}

/// The elements that a pod needs for those of its clients whom it could not answer.
fn masquerade(
    pod: IpAddr,
    source_nat: SourceNat,
    links: &[(IpAddr, Link)],
    owner: &str,
) -> Vec<Element> {
    let names = names(crate::config::version_of(pod));
    let to = Value::Address(pod);
    let mut elements = Vec::new();
    if source_nat == SourceNat::None {
        return elements;
    }
    elements.push(Element::new(names.pairs, &[to, to], owner));
    let localhost = names.localhost.iter();
    elements.extend(localhost.map(|set| Element::new(set, &[to], owner)));
    let links = links.iter().filter(|(address, _)| *address == pod);
    elements.extend(links.map(|(_, link)| {
        let key = [Value::InterfaceName(&link.name), to];
        Element::new(names.links, &key, owner)
    }));
    if source_nat == SourceNat::All {
        elements.push(Element::new(names.pods, &[to], owner));
    }
    elements
}

fn condition_element(port: HostPort, owner: &str) -> Element {
    let names = names(port.version);
    let set = match port.address {
        Some(_) => names.address_conditions,
        None => names.conditions,
    };
    Element::new(set, &key(port), owner)
}

fn key(port: HostPort) -> Vec<Value<'static>> {
    let address = port.address.map(Value::Address);
    let port = [Value::Protocol(port.protocol), Value::Port(port.port)];
    address.into_iter().chain(port).collect()
}

/// The host's port that an element of the table leads from, if it is of such a set.
pub(crate) fn host_port(element: &Element) -> Option<HostPort> {
    let (version, set) = port_set(element)?;
    let (address, protocol, port) = match *element.key(&set).as_slice() {
        [
            Value::Address(address),
            Value::Protocol(protocol),
            Value::Port(port),
        ] => (Some(address), protocol, port),
        [Value::Protocol(protocol), Value::Port(port)] => (None, protocol, port),
        _ => return None,
    };
    Some(HostPort {
        version,
        address,
        protocol,
        port,
    })
}

/// As [`host_port`], with where it leads.
pub(crate) fn forward(element: &Element) -> Option<Forward> {
    let (_, set) = port_set(element)?;
    let [Value::Address(pod), Value::Port(container_port)] = *element.target(&set).as_slice()
    else {
        return None;
    };
    Some(Forward {
        port: host_port(element)?,
        pod,
        container_port,
    })
}

fn port_set(element: &Element) -> Option<(IpVersion, Set)> {
    [&V4, &V6].into_iter().find_map(|names| {
        let set = match element.set.as_str() {
            name if name == names.address_ports => names.address_set(),
            name if name == names.ports => names.port_set(),
            _ => return None,
        };
        Some((names.version, set))
    })
}

/// The element that a port has, without what it leads to.
pub(crate) fn port_element(port: HostPort, owner: &str) -> Element {
    let names = names(port.version);
    let set = match port.address {
        Some(_) => names.address_ports,
        None => names.ports,
    };
    Element::new(set, &key(port), owner)
}

/// The set in which ports of single addresses are.
pub(crate) fn of_single_addresses(version: IpVersion) -> Set {
    names(version).address_set()
}

/// Translation and masquerading, without any network's conditions.
pub(crate) fn table() -> Table {
    Table {
        family: Family::Inet,
        name: "cni-portmap",
        sets: [&V4, &V6].into_iter().flat_map(Names::sets).collect(),
        chains: vec![
            martians(),
            entry("prerouting", Hook::Prerouting),
            entry("output", Hook::Output),
            regular(HOST_PORTS, lookups()),
            regular(
                TRANSLATE,
                [&V4, &V6].into_iter().flat_map(Names::translate).collect(),
            ),
            Chain {
                name: "postrouting".to_owned(),
                entry: Some(Entry {
                    kind: ChainKind::Nat,
                    hook: Hook::Postrouting,
                    priority: SOURCE_NAT,
                }),
                rules: [&V4, &V6].into_iter().flat_map(Names::masquerade).collect(),
            },
        ],
    }
}

/// `route_localnet` would let neighbours reach what listens on 127.0.0.1 alone (CVE-2020-8558).
fn martians() -> Chain {
    let rules = network(Ipv4Addr::new(127, 0, 0, 0), 8);
    let rules = rules.flat_map(|localnet| {
        let foreign = || Rule::new("127.0.0.0/8 is within the host").unless(Field::InputName, &LO);
        [
            foreign().when_to(localnet).drop(),
            foreign().when_from(localnet).drop(),
        ]
    });
    Chain {
        name: "martians".to_owned(),
        entry: Some(Entry {
            kind: ChainKind::Filter,
            hook: Hook::Prerouting,
            priority: BEFORE_TRACKING,
        }),
        rules: rules.collect(),
    }
}

fn entry(name: &str, hook: Hook) -> Chain {
    let rule = Rule::new("what is for the host itself");
    Chain {
        name: name.to_owned(),
        entry: Some(Entry {
            kind: ChainKind::Nat,
            hook,
            priority: AFTER_KUBE_PROXY,
        }),
        rules: vec![rule.when_to_host().goto(HOST_PORTS)],
    }
}

fn regular(name: &str, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.to_owned(),
        entry: None,
        rules,
    }
}

fn lookups() -> Vec<Rule> {
    let localhost = Rule::new("an answer to ::1 never finds back");
    let localhost = localhost.when_to(IpNetwork::from(IpAddr::from(Ipv6Addr::LOCALHOST)));
    let v4 = network(Ipv4Addr::new(169, 254, 0, 0), 16);
    let link_local = v4.chain(network(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10));
    let link_local = link_local.map(|it| {
        let rule = Rule::new("link-local addresses are the host's own");
        rule.when_to(it).leave()
    });
    let conditions = [&V4, &V6].into_iter().flat_map(Names::conditions);
    let all = Rule::new("ports of networks without conditions").goto(TRANSLATE);
    [localhost.leave()]
        .into_iter()
        .chain(link_local)
        .chain(conditions)
        .chain([all])
        .collect()
}

const HOST_PORTS: &str = "host-ports";
const TRANSLATE: &str = "translate";

/// The name of the loopback link, as the kernel compares it.
const LO: [u8; 16] = *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// `NF_IP_PRI_RAW`
const BEFORE_TRACKING: i32 = -300;

/// `NF_IP_PRI_NAT_DST` + 10: at equal priorities the chain that was made last would come first
/// (CVE-2019-9946).
const AFTER_KUBE_PROXY: i32 = -90;

/// `NF_IP_PRI_NAT_SRC`
const SOURCE_NAT: i32 = 100;
