//! Rules for the tunnels between nodes.
//!
//! VXLAN has no authentication: a program that reaches a node's tunnel port can send any packet to the
//! node's pods. So only the tunnels of nodes may send to this port. Packets of pods are dropped before
//! masquerading gives them the node's address. WireGuard authenticates: there, the rules drop packets of
//! other nodes' pods, and to them, that do not take the tunnel.

use std::collections::{BTreeSet, HashSet};
use std::future::pending;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{Nodes, Others, Peers, Vxlan, Way};
use ipnetwork::IpNetwork;
use netlink::IpVersion;
use nft::{
    Chain, Change, Connection, Deletion, Element, Family, Field, Hook, Rule, Set, Table,
    TargetType, Type, Value, Watch, ranges,
};

use crate::events::{Events, events};

/// What the rules guard.
pub(super) struct Guarded {
    /// The values of VXLAN; `None` with WireGuard.
    pub vxlan: Option<Vxlan>,
    /// The nodes, whose addresses may send to the tunnel port of VXLAN.
    pub nodes: Nodes,
    /// The networks of other nodes' pods, from which alone packets come out of VXLAN devices, or which are
    /// reached by WireGuard alone.
    pub pods: BTreeSet<IpNetwork>,
}

impl Guarded {
    /// Returns what the rules guard on the node `own`; `None` without tunnels.
    pub fn of(
        (own, nodes): (&str, &Nodes),
        (peers, way): (&Peers, &Way),
        vxlan: Vxlan,
    ) -> Option<Self> {
        match way {
            Way::Direct => None,
            Way::Vxlan(_) | Way::Auto(..) => Some(Self {
                vxlan: Some(vxlan),
                nodes: nodes.clone(),
                pods: peers.networks.keys().copied().collect(),
            }),
            Way::WireGuard(_) => {
                let own = nodes.get(own).into_iter();
                let own: Vec<_> = own.flat_map(|it| &it.pod_cidrs).collect();
                let pods = peers.encrypted.iter().copied();
                let pods = pods.filter(|it| !own.iter().any(|own| own.contains(it.network())));
                Some(Self {
                    vxlan: None,
                    nodes: Nodes::new(),
                    pods: pods.collect(),
                })
            }
        }
    }
}

/// Creates or repairs the rules. With [`Others::Keep`], addresses of nodes that an earlier agent added
/// stay, and so do its networks of pods if `guarded` has none.
///
/// # Errors
/// The kernel refuses a request.
pub(super) fn apply(guarded: &Guarded, others: Others) -> anyhow::Result<()> {
    let table = table(guarded.vxlan);
    let connection = Connection::open()?;
    let desired = elements(guarded);
    let keeps_pods = others == Others::Keep && guarded.pods.is_empty();
    connection.update(&table, || {
        let mut present = connection.elements(&table)?;
        let mut add = desired.clone();
        if others == Others::Keep {
            let desired = HashSet::<_>::from_iter(&desired);
            add.extend(present.iter().filter(|it| !desired.contains(it)).cloned());
        }
        for set in table.sets.iter().filter(|it| it.has_ranges && !keeps_pods) {
            present.extend(connection.elements_of(&table, set)?);
        }
        Ok::<_, nft::Error>(Change::of(present, add))
    })?;
    Ok(())
}

/// Removes the rules.
///
/// # Errors
/// The kernel refuses a request.
pub(super) fn remove() -> anyhow::Result<()> {
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(());
    };
    Ok(connection.delete_table(&table(None))?)
}

/// Returns a receiver of values after each of which the rules, or the networks without masquerading,
/// may be incomplete. Its thread ends within [`PATIENCE`] after the receiver was dropped.
///
/// # Errors
/// The kernel refuses the socket.
pub(super) fn deletions() -> anyhow::Result<Events<()>> {
    let (watch, own) = (Watch::open()?, table(None));
    let name = own.name;
    let mut tables = attach::tables().to_vec();
    tables.push(own);
    Ok(events(move || {
        let concerns = |it: &Deletion| it.table == name || attach::lacks_cluster_networks(it);
        watch.wait_for_deletion(&tables, concerns, PATIENCE)?;
        Ok(())
    }))
}

/// Waits for a deletion in the rules. An error ends `deletions`.
pub(super) async fn next(deletions: &mut Option<Events<()>>) -> anyhow::Result<()> {
    let Some(events) = deletions else {
        return pending().await;
    };
    let event = events.recv().await;
    let event = event.context("the thread that listens to nf_tables has ended");
    let outcome = event.flatten();
    if outcome.is_err() {
        *deletions = None;
    }
    outcome
}

/// Describes the table. Its name, sets and chains do not depend on `vxlan`. All packets of pods traverse
/// the chains in prerouting and postrouting. Most leave each rule there after one comparison, so what
/// concerns few packets is in chains that the rules lead to.
fn table(vxlan: Option<Vxlan>) -> Table {
    let [arrived, to_host, sent] = match vxlan {
        Some(vxlan) => [
            vec![out_of_tunnel(), spoofed(vxlan)],
            vec![to_port(vxlan, "packets to the tunnel port").goto(TO_THIS_NODE)],
            vec![to_port(vxlan, "packets to the tunnel port").goto(SENT_TO_PORT)],
        ],
        None => [claimed(), Vec::new(), unencrypted()],
    };
    let nodes =
        FAMILIES.map(|(version, name)| Set::new(name, [Type::address(version)], TargetType::None));
    let pods = PODS.map(|(version, name)| Set::of_networks(name, version));
    Table {
        family: Family::Inet,
        name: "cni-cluster",
        sets: nodes.into_iter().chain(pods).collect(),
        chains: vec![
            Chain::regular(INNER, inner()),
            Chain::regular(TO_THIS_NODE, to_this_node()),
            Chain::regular(SENT_TO_PORT, sent_to_port()),
            Chain::filter("tunnel", Hook::Prerouting, RAW, arrived),
            Chain::filter("tunnel-port", Hook::Input, BEFORE_FILTER, to_host),
            Chain::filter("sent", Hook::Postrouting, BEFORE_NAT, sent),
        ],
    }
}

fn out_of_tunnel() -> Rule {
    let rule = Rule::new("packets out of a tunnel").when(Field::InputName, TUNNELS);
    rule.goto(INNER)
}

/// Before Linux 5.19, rules can compare the link only when packets arrive.
fn spoofed(vxlan: Vxlan) -> Rule {
    to_port(
        vxlan,
        "a node's packets arrive through the link that leads to the node",
    )
    .when_source_is_elsewhere()
    .when_to_host()
    .drop()
}

/// Returns the rules for packets out of a tunnel.
fn inner() -> Vec<Rule> {
    let rules = PODS.map(|(version, set)| {
        Rule::new("a packet out of a tunnel comes from a pod CIDR of another node")
            .when_ip(version)
            .when_not_in(&[Field::Source(version)], set)
            .drop()
    });
    rules.to_vec()
}

/// Returns the rules for packets that claim the address of another node's pod.
fn claimed() -> Vec<Rule> {
    let rules = PODS.map(|(version, set)| {
        Rule::new("only WireGuard brings packets of other nodes' pods")
            .unless(Field::InputName, WIREGUARD)
            .unless(Field::InputName, LOOPBACK)
            .when_ip(version)
            .when_in(&[Field::Source(version)], set)
            .drop()
    });
    rules.to_vec()
}

/// Returns the rules for packets to pods of other nodes that would leave unencrypted, such as by a route
/// of another program.
fn unencrypted() -> Vec<Rule> {
    let rules = PODS.map(|(version, set)| {
        Rule::new("packets to other nodes' pods are encrypted")
            .unless(Field::OutputName, WIREGUARD)
            .when_ip(version)
            .when_in(&[Field::Destination(version)], set)
            .drop()
    });
    rules.to_vec()
}

/// Returns the rules for packets to this node's tunnel port: they come from the address of a node, and
/// go to that of this node, not to another one, such as a virtual address.
fn to_this_node() -> Vec<Rule> {
    let nodes = FAMILIES.into_iter().map(|(version, set)| {
        Rule::new("nodes send to the InternalIP")
            .when_ip(version)
            .when_in(&[Field::Source(version)], set)
            .when_in(&[Field::Destination(version)], set)
            .return_to_caller()
    });
    let others = Rule::new("only nodes send to the tunnel port").drop();
    nodes.chain([others]).collect()
}

/// Returns the rules for packets to a tunnel port, before they are masqueraded: only the tunnel sends
/// them to a node, with this node's address. Packets of pods, of processes of this node, and those that
/// came out of the tunnel for a Service are dropped. The link that a packet came from is known here
/// since Linux 5.7 ("netfilter: Support iif matches in POSTROUTING"): the tunnel's device, for packets
/// that it made.
fn sent_to_port() -> Vec<Rule> {
    let made = FAMILIES.map(|(version, set)| {
        Rule::new("the tunnel sends with this node's address")
            .when(Field::InputName, TUNNELS)
            .when_ip(version)
            .when_in(&[Field::Source(version)], set)
            .return_to_caller()
    });
    let others = FAMILIES.map(|(version, set)| {
        Rule::new("only the tunnel sends to the tunnel port of a node")
            .when_ip(version)
            .when_in(&[Field::Destination(version)], set)
            .drop()
    });
    [made, others].concat()
}

/// Starts a rule for packets to the tunnel port. The kernel compares the port faster than the protocol.
fn to_port(vxlan: Vxlan, why: &'static str) -> Rule {
    Rule::new(why)
        .when(Field::DestinationPort, &vxlan.port.to_be_bytes())
        .when(Field::Protocol, &[UDP])
}

/// Returns the elements of all sets.
fn elements(guarded: &Guarded) -> Vec<Element> {
    let [(_, v4), (_, v6)] = FAMILIES;
    let addresses: BTreeSet<_> = guarded
        .nodes
        .values()
        .flat_map(|it| &it.addresses)
        .collect();
    let addresses = addresses.into_iter();
    let addresses = addresses.map(|it| {
        let set = if it.is_ipv4() { v4 } else { v6 };
        Element::new(set, &[Value::Address(*it)], OWNER)
    });
    let pods = PODS.into_iter().flat_map(|(version, set)| {
        let networks = guarded.pods.iter().copied();
        ranges(set, version, networks, OWNER)
    });
    addresses.chain(pods).collect()
}

/// The set of the nodes' addresses of each family.
const FAMILIES: [(IpVersion, &str); 2] = [(IpVersion::V4, "nodes-v4"), (IpVersion::V6, "nodes-v6")];

/// The set of the networks of other nodes' pods of each family.
const PODS: [(IpVersion, &str); 2] = [(IpVersion::V4, "pods-v4"), (IpVersion::V6, "pods-v6")];

/// Chains of packets out of a tunnel, and of packets to a tunnel port.
const INNER: &str = "inner";
const TO_THIS_NODE: &str = "to-this-node";
const SENT_TO_PORT: &str = "sent-to-port";

/// The comment of the sets' elements.
const OWNER: &str = "cni-agent";

/// The beginning of the names of the VXLAN devices.
const TUNNELS: &[u8] = b"cni-vxlan";

/// The names of the WireGuard device and of the loopback link, up to the zero that ends them.
const WIREGUARD: &[u8] = b"cni-wg\0";
const LOOPBACK: &[u8] = b"lo\0";

/// Number of the protocol UDP.
const UDP: u8 = 17;

/// Priorities: `raw`, before `filter`, and before `srcnat`.
const RAW: i32 = -300;
const BEFORE_FILTER: i32 = -10;
const BEFORE_NAT: i32 = 90;

/// Time after which the rules are compared even without an event.
const PATIENCE: Duration = Duration::from_hours(1);
