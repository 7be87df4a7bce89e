//! Rules that keep foreign packets out of the tunnels between nodes.
//!
//! VXLAN has no authentication: a program that reaches a node's tunnel port can send any packet to the
//! node's pods. So only the tunnels of nodes may send to this port. Packets of pods are dropped before
//! masquerading gives them the node's address.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{Nodes, Others, Vxlan};
use netlink::IpVersion;
use nft::{
    Chain, Change, Connection, Deletion, Element, Family, Field, Hook, Rule, Set, Table,
    TargetType, Type, Value, Watch,
};

use crate::events::{Events, events};

/// Creates or repairs the rules, and allows the addresses of all nodes. `others` says whether other
/// addresses stay allowed.
///
/// # Errors
/// The kernel refuses a request.
pub(super) fn apply(vxlan: Vxlan, nodes: &Nodes, others: Others) -> anyhow::Result<()> {
    let table = table(vxlan);
    let connection = Connection::open()?;
    let desired = elements(nodes);
    connection.update(&table, || {
        let present = connection.elements(&table)?;
        let mut add = desired.clone();
        if others == Others::Keep {
            add.extend(present.iter().filter(|it| !desired.contains(it)).cloned());
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
    Ok(connection.delete_table(&table(Vxlan::default()))?)
}

/// Returns a receiver of values after each of which the rules, or the networks without masquerading,
/// may be incomplete. Its thread ends within [`PATIENCE`] after the receiver was dropped.
///
/// # Errors
/// The kernel refuses the socket.
pub(super) fn deletions() -> anyhow::Result<Events<()>> {
    let (watch, own) = (Watch::open()?, table(Vxlan::default()));
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

/// Describes the table. Its name and sets do not depend on `vxlan`. All packets of pods traverse the
/// chains in prerouting and postrouting, and most leave each rule after one comparison.
fn table(vxlan: Vxlan) -> Table {
    let inner = Rule::new("a packet out of a tunnel comes from a pod CIDR of another node")
        .when(Field::InputName, TUNNELS)
        .when_source_is_elsewhere()
        .drop();
    // Before Linux 5.19, rules can compare the link only here.
    let spoofed = to_port(
        vxlan,
        "a node's packets arrive through the link that leads to the node",
    )
    .when_source_is_elsewhere()
    .when_to_host()
    .drop();
    let sets =
        FAMILIES.map(|(version, name)| Set::new(name, [Type::address(version)], TargetType::None));
    Table {
        family: Family::Inet,
        name: "cni-cluster",
        sets: sets.into(),
        chains: vec![
            Chain::filter("tunnel", Hook::Prerouting, RAW, vec![inner, spoofed]),
            Chain::filter(
                "tunnel-port",
                Hook::Input,
                BEFORE_FILTER,
                to_this_node(vxlan),
            ),
            Chain::filter("sent", Hook::Postrouting, BEFORE_NAT, sent(vxlan)),
        ],
    }
}

/// Returns the rules for packets to this node's tunnel port: they come from the address of a node, and
/// go to that of this node, not to another one, such as a virtual address.
fn to_this_node(vxlan: Vxlan) -> Vec<Rule> {
    let nodes = FAMILIES.into_iter().map(|(version, set)| {
        to_port(vxlan, "nodes send to the InternalIP")
            .when_ip(version)
            .when_in(&[Field::Source(version)], set)
            .when_in(&[Field::Destination(version)], set)
            .return_to_caller()
    });
    let others = to_port(vxlan, "only nodes send to the tunnel port").drop();
    nodes.chain([others]).collect()
}

/// Returns the rules for packets to the tunnel port of a node, before they are masqueraded: only the
/// tunnel sends them, neither pods nor processes of this node. Linux 5.7 and later keep the link that
/// a packet came from here, which is the tunnel's device for the packets that it made.
fn sent(vxlan: Vxlan) -> Vec<Rule> {
    let rules = FAMILIES.map(|(version, set)| {
        to_port(vxlan, "only the tunnel sends to the tunnel port of a node")
            .unless(Field::InputName, TUNNELS)
            .when_ip(version)
            .when_in(&[Field::Destination(version)], set)
            .drop()
    });
    rules.to_vec()
}

/// Starts a rule for packets to the tunnel port. The kernel compares the port faster than the protocol.
fn to_port(vxlan: Vxlan, why: &'static str) -> Rule {
    Rule::new(why)
        .when(Field::DestinationPort, &vxlan.port.to_be_bytes())
        .when(Field::Protocol, &[UDP])
}

/// Returns the elements of all sets.
fn elements(nodes: &Nodes) -> Vec<Element> {
    let [(_, v4), (_, v6)] = FAMILIES;
    let addresses: BTreeSet<_> = nodes.values().flat_map(|it| &it.addresses).collect();
    let addresses = addresses.into_iter();
    let addresses = addresses.map(|it| {
        let set = if it.is_ipv4() { v4 } else { v6 };
        Element::new(set, &[Value::Address(*it)], "cni-agent")
    });
    addresses.collect()
}

/// The set of the nodes' addresses of each family.
const FAMILIES: [(IpVersion, &str); 2] = [(IpVersion::V4, "nodes-v4"), (IpVersion::V6, "nodes-v6")];

/// The beginning of the names of the tunnels' devices.
const TUNNELS: &[u8] = b"cni-vxlan";

/// Number of the protocol UDP.
const UDP: u8 = 17;

/// Priorities: `raw`, before `filter`, and before `srcnat`.
const RAW: i32 = -300;
const BEFORE_FILTER: i32 = -10;
const BEFORE_NAT: i32 = 90;

/// Time after which the rules are compared even without an event.
const PATIENCE: Duration = Duration::from_hours(1);
