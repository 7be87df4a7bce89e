//! `nf_tables`: what is ours, and what others do to packets that the host forwards.

use std::fs;
use std::net::IpAddr;

use nft::{Connection, Family, HeldChain, Set, Table, TargetType, Type, Value};

/// What was read of it.
#[derive(Debug, Default)]
pub struct Firewall {
    /// Elements of our tables.
    pub elements: Vec<Held>,
    /// Chains of whomever, by which their makers are known.
    pub chains: Vec<HeldChain>,
    /// Comments of rules that newer versions of the reference have in tables of their own.
    pub remarks: Vec<Remark>,
    /// The families whose tables of iptables are not in `nf_tables`: `ip` and `ip6`.
    pub legacy: Vec<String>,
    /// portmap's rules keep neighbours off 127.0.0.0/8.
    pub guards_localnet: bool,
}

/// The comment of a rule of the reference's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The table that the rule is in.
    pub table: String,
    /// What it says.
    pub comment: String,
}

/// An element of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The table that it is in.
    pub table: &'static str,
    /// Whose it is.
    pub owner: String,
    /// The port of the host that it leads from, where it is of such a set.
    pub port: Option<HostPort>,
    /// The container's address, where it tells of one.
    pub address: Option<IpAddr>,
}

/// A port of the host that leads to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// The one address of the host that it is of; `None`: all of the family.
    pub address: Option<IpAddr>,
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The port.
    pub port: u16,
    /// The container's address and port.
    pub to: (IpAddr, u16),
}

impl Firewall {
    pub(super) fn read() -> Result<Self, nft::Error> {
        let connection = Connection::open()?;
        let chains = connection.chains(&[Family::Inet, Family::Ipv4, Family::Ipv6])?;
        let mut elements = Vec::new();
        let remarks = remarks(&connection, &chains)?;
        for table in tables() {
            for set in &table.sets {
                let read = connection.elements_of(&table, set)?;
                elements.extend(read.iter().map(|it| Held::of(table.name, set, it)));
            }
        }
        let has_legacy = |family: &&str| {
            let names = fs::read_to_string(format!("/proc/net/{family}_tables_names"));
            names.is_ok_and(|it| !it.trim().is_empty())
        };
        let guards_localnet = guards_localnet(&connection, &chains)?;
        let legacy = ["ip", "ip6"].iter().filter(|it| has_legacy(it));
        Ok(Self {
            elements,
            remarks,
            chains,
            legacy: legacy.map(|it| (*it).to_owned()).collect(),
            guards_localnet,
        })
    }

    /// Somebody has a table of this name.
    pub fn has_table(&self, name: &str) -> bool {
        self.chains.iter().any(|it| it.table == name)
    }

    /// Somebody has a chain of this name.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.iter().any(|it| it.name == name)
    }
}

impl HostPort {
    /// The port with its protocol: `tcp port 8080`.
    pub fn name(&self) -> String {
        let protocol = match self.protocol {
            6 => "tcp",
            17 => "udp",
            132 => "sctp",
            other => return format!("protocol {other} port {}", self.port),
        };
        format!("{protocol} port {}", self.port)
    }
}

impl Held {
    fn of(table: &'static str, set: &Set, element: &nft::Element) -> Self {
        let key = element.key(set);
        let target = element.target(set);
        let to = match *target.as_slice() {
            [Value::Address(address), Value::Port(port)] => Some((address, port)),
            _ => None,
        };
        let port = to.and_then(|to| HostPort::of(&key, to));
        // The last address of a key is the container's: of pairs it is the second part.
        let in_key = key.iter().rev().find_map(|part| match part {
            Value::Address(address) => Some(*address),
            _ => None,
        });
        Self {
            table,
            owner: element.owner.clone(),
            port,
            address: to.map(|(address, _)| address).or(in_key),
        }
    }
}

impl HostPort {
    fn of(key: &[Value<'_>], to: (IpAddr, u16)) -> Option<Self> {
        let (address, protocol, port) = match *key {
            [
                Value::Address(address),
                Value::Protocol(protocol),
                Value::Port(port),
            ] => (Some(address), protocol, port),
            [Value::Protocol(protocol), Value::Port(port)] => (None, protocol, port),
            _ => return None,
        };
        Some(Self {
            address,
            protocol,
            port,
            to,
        })
    }
}

fn remarks(connection: &Connection, chains: &[HeldChain]) -> Result<Vec<Remark>, nft::Error> {
    let names = [REFERENCE_PORTMAP, REFERENCE_MASQUERADE];
    let of_reference = |it: &&HeldChain| names.contains(&it.table.as_str());
    let tables = chains.iter().filter(of_reference);
    let mut tables: Vec<_> = tables.map(|it| (it.family, &it.table)).collect();
    tables.dedup();
    let mut remarks = Vec::new();
    for (family, table) in tables {
        let comments = connection.comments(family, table)?;
        remarks.extend(comments.into_iter().map(|comment| Remark {
            table: table.clone(),
            comment,
        }));
    }
    Ok(remarks)
}

/// Both rules of portmap's chain are there: to and from 127.0.0.0/8.
fn guards_localnet(connection: &Connection, chains: &[HeldChain]) -> Result<bool, nft::Error> {
    let (family, table) = (Family::Inet, "cni-portmap");
    let is_guard = |it: &HeldChain| it.family == family && it.table == table && it.name == GUARD;
    if !chains.iter().any(is_guard) {
        return Ok(false);
    }
    let comments = connection.comments(family, table)?;
    let rules = comments.iter().filter(|it| it.starts_with(GUARD_RULE));
    Ok(rules.count() >= 2)
}

/// The chain, and how the comments of its rules begin.
const GUARD: &str = "martians";
const GUARD_RULE: &str = "127.0.0.0/8 is within the host";

/// A table that newer versions of the reference make for portmap.
pub const REFERENCE_PORTMAP: &str = "cni_hostport";

/// A table that they make for masquerading.
pub const REFERENCE_MASQUERADE: &str = "cni_plugins_masquerade";

/// The sets of the plugins' tables in which an attachment has elements, as the plugins make them.
fn tables() -> [Table; 5] {
    let table = |family, name, sets| Table {
        family,
        name,
        sets,
        chains: Vec::new(),
    };
    [
        table(Family::Bridge, "cni-bridge", bridge_sets()),
        table(Family::Inet, "cni-masquerade", masquerade_sets()),
        table(Family::Inet, "cni-portmap", portmap_sets()),
        table(Family::Bridge, "cni-bandwidth", bandwidth_sets()),
        table(Family::Inet, "cni-bandwidth", bandwidth_sets()),
    ]
}

fn bridge_sets() -> Vec<Set> {
    let (name, mac) = (Type::InterfaceName, Type::EtherAddress);
    vec![
        set("checked-ports", &[name], TargetType::None),
        set("routed4", &[mac, Type::Ipv4Address], TargetType::None),
        set("routed6", &[mac, Type::Ipv6Address], TargetType::None),
    ]
}

fn bandwidth_sets() -> Vec<Set> {
    vec![set("limits", &[Type::InterfaceName], TargetType::Limit)]
}

fn masquerade_sets() -> Vec<Set> {
    vec![
        set("pods4", &[Type::Ipv4Address], TargetType::Chain),
        set("pods6", &[Type::Ipv6Address], TargetType::Chain),
    ]
}

fn portmap_sets() -> Vec<Set> {
    let port = [Type::Protocol, Type::Port];
    let of = |address, [single, all, pairs]: [&'static str; 3]| {
        let pod = TargetType::Values(vec![address, Type::Port]);
        let key: Vec<_> = [address].into_iter().chain(port).collect();
        [
            set(single, &key, pod.clone()),
            set(all, &port, pod),
            set(pairs, &[address, address], TargetType::None),
        ]
    };
    let v4 = ["address-ports4", "ports4", "masquerade-pairs4"];
    let v6 = ["address-ports6", "ports6", "masquerade-pairs6"];
    let sets = [of(Type::Ipv4Address, v4), of(Type::Ipv6Address, v6)];
    sets.into_iter().flatten().collect()
}

fn set(name: &'static str, key: &[Type], target: TargetType) -> Set {
    Set {
        name,
        key: key.to_vec(),
        target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_tells_its_port_and_whom_it_leads_to() {
        let pod = IpAddr::from([10, 1, 0, 2]);
        let sets = portmap_sets();
        let key = [Value::Protocol(6), Value::Port(8080)];
        let element = nft::Element::new("ports4", &key, "cni:pods/a/eth0");
        let element = element.to_values(&[Value::Address(pod), Value::Port(80)]);
        let held = Held::of("cni-portmap", &sets[1], &element);
        let port = held.port.unwrap();
        assert_eq!((port.address, port.port, port.to), (None, 8080, (pod, 80)));
        let pair = [Value::Address([127, 0, 0, 1].into()), Value::Address(pod)];
        let pair = nft::Element::new("masquerade-pairs4", &pair, "cni:pods/a/eth0");
        let held = Held::of("cni-portmap", &sets[2], &pair);
        assert_eq!(port.name(), "tcp port 8080");
        assert_eq!((held.port, held.address), (None, Some(pod)));
    }
}
