//! Reads the elements of this suite in `nf_tables`, and the chains of other programs.

use std::fs;
use std::net::IpAddr;

use nft::{Connection, Element, Family, KernelChain, Table, Value};
use portmap::Forward;

use super::lookup::tables;

/// What the firewall of the node contains: elements of this suite, and chains and rules of other
/// programs.
#[derive(Debug, Default)]
pub struct Firewall {
    /// Elements in the tables of this suite.
    pub elements: Vec<OwnedElement>,
    /// All chains of the families `inet`, `ip` and `ip6`. The names show which program made a
    /// chain.
    pub chains: Vec<KernelChain>,
    /// Comments of all rules in [`REFERENCE_TABLES`], the tables of the Go plugins.
    pub rule_comments: Vec<RuleComment>,
    /// Container addresses whose packets the Go plugin `firewall` accepts by rules in `nf_tables`.
    pub accepted_addresses: Vec<IpAddr>,
    /// Families (`ip`, `ip6`) for which the kernel has tables of legacy iptables.
    pub legacy: Vec<String>,
    /// Whether `nf_tables` contains both rules of portmap that protect 127.0.0.0/8 against
    /// neighbours.
    pub guards_localnet: bool,
}

/// The comment of a rule that a Go plugin made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleComment {
    /// Name of the rule's table.
    pub table: &'static str,
    /// Text of the comment.
    pub comment: String,
}

/// An element of a set or map in a table of this suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedElement {
    /// Name of the table.
    pub table: &'static str,
    /// Tag of the attachment to which the element belongs; empty for an element without a tag.
    pub owner: String,
    /// The host port and the container's port to which portmap forwards it; `None` if the element
    /// does not forward a port.
    pub port: Option<Forward>,
    /// The container's address, if the element contains it.
    pub address: Option<IpAddr>,
}

/// The state of one of this suite's tables in `nf_tables`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableState {
    /// The table's family, as nft(8) names it.
    pub family: &'static str,
    /// The table's name.
    pub name: &'static str,
    /// Whether the table is complete, damaged or absent.
    pub condition: Condition,
    /// Number of elements in the sets of the table, except for sets that only count elements of
    /// other sets.
    pub elements: usize,
}

/// Whether a table of this suite is complete, damaged or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Each chain has exactly the rules of this release or all rules of another release.
    Complete,
    /// Another program changed or deleted a chain, or made the table dormant (without effect). The
    /// next ADD repairs the table.
    Damaged,
    /// The table does not exist: no plugin needed it yet, or another program deleted it.
    Absent,
}

impl Firewall {
    pub(super) fn read() -> Result<Self, nft::Error> {
        let connection = Connection::open()?;
        let chains = connection.chains(&[Family::Inet, Family::Ipv4, Family::Ipv6])?;
        let mut elements = Vec::new();
        let rule_comments = rule_comments(&connection, &chains)?;
        for table in tables() {
            let read = connection.elements(&table)?;
            elements.extend(OwnedElement::all_of(&table, &read));
        }
        let mut accepted_addresses = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            let mut chains = chains.iter();
            if chains.any(|it| it.family == family && it.name == firewall::CHAIN) {
                accepted_addresses.extend(connection.accepted_addresses(family, firewall::CHAIN)?);
            }
        }
        let mut legacy = ["ip", "ip6"].map(str::to_owned).to_vec();
        legacy.retain(|family| {
            let names = fs::read_to_string(format!("/proc/net/{family}_tables_names"));
            names.is_ok_and(|it| !it.trim().is_empty())
        });
        Ok(Self {
            elements,
            rule_comments,
            accepted_addresses,
            guards_localnet: guards_localnet(&connection, &chains)?,
            chains,
            legacy,
        })
    }

    /// Returns whether [`Self::chains`] has a chain in a table with this name.
    pub fn has_table(&self, name: &str) -> bool {
        self.chains.iter().any(|it| it.table == name)
    }

    /// Returns whether [`Self::chains`] has a chain with this name.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.iter().any(|it| it.name == name)
    }
}

impl OwnedElement {
    /// Converts `elements`, which are in sets of `table`, to [`OwnedElement`]. Skips elements that
    /// all attachments on a bridge share.
    pub(super) fn all_of(table: &Table, elements: &[Element]) -> Vec<Self> {
        let owned = elements.iter().filter(|it| !firewall::is_shared(it));
        owned.map(|it| Self::of(table, it)).collect()
    }

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

impl TableState {
    /// Returns the states of all tables of this suite, and their elements, without those that the
    /// attachments of a bridge share.
    pub(super) fn read_all() -> Result<(Vec<Self>, Vec<OwnedElement>), nft::Error> {
        let connection = Connection::open()?;
        let (mut states, mut held) = (Vec::new(), Vec::new());
        for table in tables() {
            let elements = connection.elements(&table)?;
            states.push(Self {
                family: table.family.name(),
                name: table.name,
                condition: Condition::read(&connection, &table)?,
                elements: elements.len(),
            });
            held.extend(OwnedElement::all_of(&table, &elements));
        }
        Ok((states, held))
    }
}

impl Condition {
    fn read(connection: &Connection, table: &Table) -> Result<Self, nft::Error> {
        if !connection.exists(table)? {
            return Ok(Self::Absent);
        }
        let damage = connection.damage(table)?;
        Ok(if damage.is_empty() {
            Self::Complete
        } else {
            Self::Damaged
        })
    }
}

/// Returns the container's address from an element's key; `None` if the key has no address. If the
/// key has two addresses, the second one is the container's. Also returns `None` for a key with a
/// port, because the address in such a key is the host's.
fn pod(table: &Table, element: &Element) -> Option<IpAddr> {
    let key = element.key_in(table)?;
    if key.iter().any(|it| matches!(it, Value::Port(_))) {
        return None;
    }
    key.iter().rev().find_map(|part| match part {
        // In the map `standby` of attach, IPv4 addresses are in their IPv6 form.
        Value::Address(address) => Some(address.to_canonical()),
        _ => None,
    })
}

fn rule_comments(
    connection: &Connection,
    chains: &[KernelChain],
) -> Result<Vec<RuleComment>, nft::Error> {
    let mut rule_comments = Vec::new();
    for (family, table) in REFERENCE_TABLES {
        let mut tables = chains.iter().map(|it| (it.family, it.table.as_str()));
        if tables.any(|it| it == (family, table)) {
            let comments = connection.comments(family, table)?.into_iter();
            rule_comments.extend(comments.map(|comment| RuleComment { table, comment }));
        }
    }
    Ok(rule_comments)
}

/// Returns whether portmap's chain has the two rules that protect 127.0.0.0/8: one for packets to
/// these addresses, and one for packets from them.
fn guards_localnet(connection: &Connection, chains: &[KernelChain]) -> Result<bool, nft::Error> {
    let (family, table) = (Family::Inet, portmap::TABLE);
    let chain = (family, table, portmap::LOCALNET_CHAIN);
    let mut chains = chains.iter();
    if !chains.any(|it| (it.family, &*it.table, &*it.name) == chain) {
        return Ok(false);
    }
    let mut comments = connection.comments(family, table)?;
    comments.retain(|it| it.starts_with(portmap::LOCALNET_COMMENT));
    Ok(comments.len() >= 2)
}

/// Name of the table in which the Go plugin `portmap` forwards ports if its backend is nftables
/// (since version 1.6).
pub const REFERENCE_PORTMAP: &str = "cni_hostport";

/// Name of the table in which the Go plugins masquerade if their backend is nftables (since version
/// 1.6).
pub const REFERENCE_MASQUERADE: &str = "cni_plugins_masquerade";

/// Families and names of the tables in which the Go plugins forward ports and masquerade if their
/// backend is nftables (`portmap_nftables.go` and `ipmasq_nftables_linux.go`, since version 1.6).
/// The comment of a rule for an attachment identifies the attachment or its container.
pub const REFERENCE_TABLES: [(Family, &str); 3] = [
    (Family::Ipv4, REFERENCE_PORTMAP),
    (Family::Ipv6, REFERENCE_PORTMAP),
    (Family::Inet, REFERENCE_MASQUERADE),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_has_the_port_and_the_address_of_the_container() {
        let pod = IpAddr::from([10, 1, 0, 2]);
        let [table] = portmap::tables();
        let key = [Value::Protocol(6), Value::Port(8080)];
        let element = Element::new("ports4", &key, "cni:pods/a/eth0");
        let element = element.to_values(&[Value::Address(pod), Value::Port(80)]);
        let held = OwnedElement::of(&table, &element);
        assert_eq!(held.address, Some(pod));
        let forward = held.port.unwrap();
        assert_eq!(forward.port.name(), "tcp port 8080");
        assert_eq!((forward.pod, forward.container_port), (pod, 80));
        let pair = [Value::Address([127, 0, 0, 1].into()), Value::Address(pod)];
        let pair = Element::new("masquerade-pairs4", &pair, "cni:pods/a/eth0");
        let held = OwnedElement::of(&table, &pair);
        assert_eq!((held.port, held.address), (None, Some(pod)));
        let host = [Value::Address([192, 0, 2, 1].into()), key[0], key[1]];
        let condition = Element::new("address-conditions4", &host, "cni:pods/a/eth0");
        assert_eq!(OwnedElement::of(&table, &condition).address, None);
    }
}
