//! `ipMasq`: masquerades packets from containers to destinations outside their networks.

use std::collections::BTreeSet;

use cni::{Error, hex, keys, note};
use ipnetwork::IpNetwork;
use netlink::network_of;
use nft::{
    Chain, Change, Connection, Deleted, Deletion, Element, Family, Field, Hook, IpVersion, Rule,
    Set, SourcePort, Table, base_chain_of, ranges,
};
use sha2::{Digest as _, Sha256};

use crate::addressing::hosts;
use crate::protection::Subject;
use crate::standby::{self, PODS_V4, PODS_V6, STANDBY};
use crate::{Backend, Protection};

/// How to masquerade, and which destinations to exempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// Destinations without masquerading, besides the container's own networks and multicast.
    exempt: Vec<IpNetwork>,
    /// How the kernel chooses the source port of a masqueraded connection.
    source_port: SourcePort,
}

/// The keys of masquerading, as written in JSON.
#[derive(Debug, Default)]
pub struct RawMasquerade {
    /// The key `ipMasq`: whether to masquerade.
    pub is_asked: bool,
    /// The key `ipMasqBackend`, which has no effect.
    pub backend: Backend,
    /// The key `ipMasqRandomFully`: whether the kernel chooses random source ports. `None` means
    /// true.
    pub is_random: Option<bool>,
    /// The key `nonMasqueradeCIDRs`: destinations without masquerading.
    pub exempt: Vec<String>,
}

impl Masquerade {
    /// Parses `ipMasq`, `ipMasqBackend`, `ipMasqRandomFully` and `nonMasqueradeCIDRs`. Returns
    /// `None` if `ipMasq` is false.
    ///
    /// # Errors
    /// Code 7: `nonMasqueradeCIDRs` contains a text that is not a network.
    pub fn parse(raw: &RawMasquerade) -> Result<Option<Self>, Error> {
        let parsed = |text: &String| keys::parsed(text, "nonMasqueradeCIDRs");
        let exempt = raw.exempt.iter().map(parsed);
        let exempt = exempt.collect::<Result<Vec<IpNetwork>, _>>()?;
        if !raw.is_asked {
            if !exempt.is_empty() {
                note("nonMasqueradeCIDRs does nothing without ipMasq");
            }
            return Ok(None);
        }
        // The plugin always masquerades with `nf_tables`. It accepts `iptables`, so that a
        // configuration of the Go plugins works unchanged.
        if raw.backend == Backend::Iptables {
            note("ipMasqBackend: \"iptables\" has no effect: the plugin uses nf_tables");
        }
        let source_port = match raw.is_random {
            Some(false) => SourcePort::Kept,
            Some(true) | None => SourcePort::FullyRandom,
        };
        Ok(Some(Self {
            exempt,
            source_port,
        }))
    }

    /// Returns an element for each of the container's addresses, and the table with the chain that
    /// handles packets from these addresses. The chain leaves packets to exempt destinations
    /// unchanged and masquerades all others. Containers with the same rules share one chain.
    pub(crate) fn protection(&self, subject: &Subject<'_>) -> Protection {
        let (table, chain) = self.table(subject.ips.iter().map(|ip| ip.address));
        let addresses = hosts(subject.ips).into_iter();
        let elements = addresses.map(|it| standby::element(it, &chain, subject.owner));
        let elements = elements.collect();
        Protection { table, elements }
    }

    /// Returns the table with the chain for a container that has the addresses `own`, and the name
    /// of this chain. The chain does not masquerade packets to the networks of `own`. The table also
    /// has the chain that [`of_invalid`] returns.
    pub(crate) fn table(&self, own: impl Iterator<Item = IpNetwork>) -> (Table, String) {
        let own = networks(own);
        let exempt = own.iter().copied().chain(multicast());
        let exempt = networks(exempt.chain(self.exempt.iter().copied()));
        let policy = format!("{exempt:?} {:?}", self.source_port);
        let chain = format!("policy-{}", hex(&Sha256::digest(policy), 12));
        let stay = exempt.iter().copied().map(exemption);
        let leave = Rule::new("all else leaves from the host's address");
        let mut table = table();
        let rules = stay.chain([leave.masquerade(self.source_port)]).collect();
        table.chains.extend(of_invalid(&chain, &own, &exempt));
        table.chains.push(Chain::regular(&chain, rules));
        (table, chain)
    }
}

/// Returns the base chain of the chain `policy` ([`base_chain_of`]). It drops packets that
/// conntrack can assign to no connection, if they come from a network in `own` and go to none in
/// `exempt`. The kernel masquerades only packets of connections, so these would leave with a
/// container's address. The chain is in the hook `forward`, so that it delays no packet that the
/// host itself sends. It does not see what a program of the host sends for a container, such as
/// kube-proxy's IPVS or a transparent proxy.
///
/// Returns `None` if all networks in `own` are single addresses: there would be a chain for each
/// container, and each packet traverses all these chains.
fn of_invalid(policy: &str, own: &[IpNetwork], exempt: &[IpNetwork]) -> Option<Chain> {
    let is_single = |it: &IpNetwork| IpNetwork::from(it.ip()) == *it;
    let shared = own.iter().filter(|it| !is_single(it));
    let drops = shared.map(|it| {
        let drop = Rule::new("cannot be masqueraded");
        drop.when_from(*it).drop()
    });
    let drops: Vec<_> = drops.collect();
    if drops.is_empty() && !own.is_empty() {
        return None;
    }
    let valid = Rule::new("belongs to a connection").unless_invalid();
    let rules = [valid.return_to_caller()].into_iter();
    let rules = rules.chain(within_cluster());
    let rules = rules.chain(exempt.iter().copied().map(exemption));
    let rules = rules.chain(drops).collect();
    Some(Chain::filter(
        base_chain_of(policy),
        Hook::Forward,
        SOURCE_NAT,
        rules,
    ))
}

fn exemption(network: IpNetwork) -> Rule {
    let rule = Rule::new("keeps its address").when_to(network);
    rule.return_to_caller()
}

/// Returns the networks of these addresses, sorted and without duplicates.
fn networks(addresses: impl Iterator<Item = IpNetwork>) -> Vec<IpNetwork> {
    let networks: BTreeSet<_> = addresses.map(network_of).collect();
    networks.into_iter().collect()
}

/// Returns the table without elements. Its base chain looks up a packet's source address in the
/// maps of the containers' addresses, and continues in the chain to which the map refers.
/// [`Masquerade::table`] adds this chain.
pub(crate) fn table() -> Table {
    let by_source = |version, pods| {
        Rule::new("what pods send")
            .when_ip(version)
            .goto_by(&[Field::Source(version)], pods)
    };
    let rules = within_cluster().into_iter().chain([
        by_source(IpVersion::V4, PODS_V4),
        by_source(IpVersion::V6, PODS_V6),
    ]);
    let networks = CLUSTER.map(|(version, set)| Set::of_networks(set, version));
    Table {
        family: Family::Inet,
        name: MASQUERADE_TABLE,
        sets: standby::maps().into_iter().chain(networks).collect(),
        chains: vec![Chain::nat(
            "postrouting",
            Hook::Postrouting,
            SOURCE_NAT,
            rules.collect(),
        )],
    }
}

/// Returns the rules by which pods of one cluster see each other's addresses.
fn within_cluster() -> [Rule; 2] {
    CLUSTER.map(|(version, set)| {
        Rule::new("pods of the cluster reach each other with their addresses")
            .when_ip(version)
            .when_in(&[Field::Source(version)], set)
            .when_in(&[Field::Destination(version)], set)
            .return_to_caller()
    })
}

/// Replaces the networks of a cluster's pods: packets from one of them to another one keep their source
/// address. The networks stay when the caller ends.
///
/// # Errors
/// The kernel refuses a request.
pub fn set_cluster_networks(networks: &BTreeSet<IpNetwork>) -> Result<(), nft::Error> {
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(());
    };
    let table = table();
    if networks.is_empty() && !connection.exists(&table)? {
        return Ok(());
    }
    let elements = CLUSTER.into_iter().flat_map(|(version, set)| {
        let networks = networks.iter().copied();
        ranges(set, version, networks, CLUSTER_OWNER)
    });
    let desired: Vec<_> = elements.collect();
    connection.update(&table, || {
        let mut present = Vec::new();
        for set in table.sets.iter().filter(|it| it.has_ranges) {
            present.extend(connection.elements_of(&table, set)?);
        }
        Ok::<_, nft::Error>(Change::of(present, desired.clone()))
    })?;
    Ok(())
}

/// Returns whether the deletion may have removed networks that [`set_cluster_networks`] has set.
pub fn lacks_cluster_networks(deletion: &Deletion) -> bool {
    let is_lost = match &deletion.deleted {
        Deleted::Table | Deleted::Set => true,
        Deleted::Elements(elements) => elements.iter().any(|it| it.owner == CLUSTER_OWNER),
        Deleted::Chain(_) | Deleted::Rule { .. } => false,
    };
    is_lost && deletion.table == MASQUERADE_TABLE
}

/// Returns whether `element`, an element of the table with this name, only records that an
/// attachment stands by for an address that another one holds. It has no effect on packets.
pub fn stands_by(table: &str, element: &Element) -> bool {
    table == MASQUERADE_TABLE && element.set == STANDBY
}

fn multicast() -> impl Iterator<Item = IpNetwork> {
    let networks = ["224.0.0.0/4", "ff00::/8"].into_iter();
    networks.flat_map(str::parse)
}

/// Name of the table with the masquerade rules. Its family is `inet`.
pub const MASQUERADE_TABLE: &str = "cni-masquerade";

/// The set of the networks of a cluster's pods, for each family.
const CLUSTER: [(IpVersion, &str); 2] =
    [(IpVersion::V4, "cluster-v4"), (IpVersion::V6, "cluster-v6")];

/// Comment of these sets' elements.
const CLUSTER_OWNER: &str = "cni-agent";

/// Priority of chains that translate source addresses (`NF_IP_PRI_NAT_SRC`).
const SOURCE_NAT: i32 = 100;
