//! `nf_tables`: what is ours, and what others do to packets that the host forwards.

use std::fs;
use std::net::IpAddr;

use nft::{Connection, Element, Family, HeldChain, Table, Value};
use portmap::Forward;

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
    /// The table that it is in.
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
    pub port: Option<Forward>,
    /// The container's address, where it tells of one.
    pub address: Option<IpAddr>,
}

impl Firewall {
    pub(super) fn read() -> Result<Self, nft::Error> {
        let connection = Connection::open()?;
        let chains = connection.chains(&[Family::Inet, Family::Ipv4, Family::Ipv6])?;
        let mut elements = Vec::new();
        let remarks = remarks(&connection, &chains)?;
        for (_, table) in tables() {
            let read = connection.elements(&table)?;
            elements.extend(read.iter().map(|it| Held::of(&table, it)));
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

impl Held {
    fn of(table: &Table, element: &Element) -> Self {
        let port = Some(element).filter(|_| table.name == portmap::TABLE);
        let port = port.and_then(portmap::forward);
        Self {
            table: table.name,
            owner: element.owner.clone(),
            address: port.map_or_else(|| pod(table, element), |it| Some(it.pod)),
            port,
        }
    }
}

/// The last address of the key, which is the container's: of pairs it is the second part. An address with a port is the host's.
fn pod(table: &Table, element: &Element) -> Option<IpAddr> {
    let set = table.sets.iter().find(|it| it.name == element.set)?;
    let key = element.key(set);
    if key.iter().any(|it| matches!(it, Value::Port(_))) {
        return None;
    }
    key.iter().rev().find_map(|part| match part {
        Value::Address(address) => Some(*address),
        _ => None,
    })
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
    let (family, table) = (Family::Inet, portmap::TABLE);
    let is_guard = |it: &HeldChain| {
        it.family == family && it.table == table && it.name == portmap::LOCALNET_CHAIN
    };
    if !chains.iter().any(is_guard) {
        return Ok(false);
    }
    let comments = connection.comments(family, table)?;
    let rules = comments
        .iter()
        .filter(|it| it.starts_with(portmap::LOCALNET_COMMENT));
    Ok(rules.count() >= 2)
}

/// A table that newer versions of the reference make for portmap.
pub const REFERENCE_PORTMAP: &str = "cni_hostport";

/// A table that they make for masquerading.
pub const REFERENCE_MASQUERADE: &str = "cni_plugins_masquerade";

/// The tables of this suite, each with the plugin whose attachments have elements in it.
pub fn tables() -> Vec<(&'static str, Table)> {
    let bridge = attach::tables().map(|it| ("bridge", it)).into_iter();
    let portmap = portmap::tables().map(|it| ("portmap", it));
    let bandwidth = bandwidth::tables().map(|it| ("bandwidth", it));
    bridge.chain(portmap).chain(bandwidth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_tells_its_port_and_whom_it_leads_to() {
        let pod = IpAddr::from([10, 1, 0, 2]);
        let [table] = portmap::tables();
        let key = [Value::Protocol(6), Value::Port(8080)];
        let element = Element::new("ports4", &key, "cni:pods/a/eth0");
        let element = element.to_values(&[Value::Address(pod), Value::Port(80)]);
        let held = Held::of(&table, &element);
        assert_eq!(held.address, Some(pod));
        let forward = held.port.unwrap();
        assert_eq!(forward.port.name(), "tcp port 8080");
        assert_eq!((forward.pod, forward.container_port), (pod, 80));
        let pair = [Value::Address([127, 0, 0, 1].into()), Value::Address(pod)];
        let pair = Element::new("masquerade-pairs4", &pair, "cni:pods/a/eth0");
        let held = Held::of(&table, &pair);
        assert_eq!((held.port, held.address), (None, Some(pod)));
        let host = [Value::Address([192, 0, 2, 1].into()), key[0], key[1]];
        let condition = Element::new("address-conditions4", &host, "cni:pods/a/eth0");
        assert_eq!(Held::of(&table, &condition).address, None);
    }
}
