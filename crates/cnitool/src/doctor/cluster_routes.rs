//! Checks whether this node has a route to the pods of each other node of its cluster.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::Duration;

use cluster::{DEVICE, NAMES, Peer, State, mac};
use ipnetwork::IpNetwork;
use netlink::{MacAddress, Route};
use node::{Node, is_looked_up};

use super::finding::{Finding, count, or_ok, some_of};

/// Compares the routes with the nodes that the API server listed to cni-agent. Returns no findings if
/// the agent does not make the routes of this node.
pub fn judge(node: &Node) -> Vec<Finding> {
    let Some(state) = node.cluster.as_ref().filter(|it| !it.has_other_routes) else {
        return Vec::new();
    };
    let peers = state.peers();
    let problems = peers.problems.iter();
    let mut findings: Vec<_> = problems
        .map(|it| Finding::warning(it.to_string()).impact(UNREACHED))
        .collect();
    let (mut missing, mut wrong) = (Vec::new(), Vec::new());
    for (network, peer) in &peers.networks {
        match node.routes.iter().find(|it| leads_to(it, *network)) {
            None => missing.push(words(*network, peer)),
            Some(route) => wrong.extend(fault((node, state), route, peer).map(|it| {
                let place = words(*network, peer);
                format!("{place} {it}")
            })),
        }
    }
    if !missing.is_empty() {
        let message = format!("no route to {}", some_of(missing));
        findings.push(Finding::problem(message).impact(UNREPAIRED));
    }
    if !wrong.is_empty() {
        let message = format!("the route to {}", some_of(wrong));
        findings.push(Finding::problem(message).impact(UNREPAIRED));
    }
    if findings.is_empty() {
        let silent = silent(node, &peers.networks);
        if !silent.is_empty() {
            let message = format!("no answer from {}", some_of(silent));
            findings.push(Finding::warning(message).impact(SILENT));
        }
    }
    or_ok(findings, Some(ok(state, peers.networks.len())))
}

fn leads_to(route: &Route, network: IpNetwork) -> bool {
    is_looked_up(route.table)
        && route.destination.prefix() == network.prefix()
        && route.destination.ip() == network.network()
        // Not the one that only refuses packets.
        && route.links().next().is_some()
}

/// Returns why packets that take the route do not reach the node.
fn fault((node, state): (&Node, &State), route: &Route, peer: &Peer) -> Option<String> {
    let link = route.links().next().and_then(|it| node.link(it))?;
    if state.is_encrypted {
        let is_right = link.name == DEVICE;
        return (!is_right).then(|| format!("leads to {}, not to {DEVICE}", link.name));
    }
    let is_tunnel = NAMES.contains(&link.name.as_str());
    let Some(gateway) = route.gateway else {
        return Some(format!("leads to no gateway, but to {}", link.name));
    };
    if !is_tunnel {
        let is_right = gateway == peer.address;
        return (!is_right).then(|| format!("leads to {gateway}, not to {}", peer.address));
    }
    if !link.is_up {
        return Some(format!("uses {}, which is down", link.name));
    }
    let mut neighbours = node.neighbours.iter();
    let is_known =
        neighbours.any(|it| it.link == link.index && it.address == gateway && it.is_permanent);
    if !is_known {
        return Some(format!(
            "uses {}, which has no entry for {gateway}",
            link.name
        ));
    }
    let mac = MacAddress(mac(&peer.name));
    let mut entries = node.forwarding.iter();
    let entry = entries.find(|it| it.link == link.index && it.mac == mac);
    let is_right = entry.is_some_and(|it| it.to == peer.address);
    (!is_right).then(|| {
        format!(
            "uses {}, which does not send {mac} to {}",
            link.name, peer.address
        )
    })
}

/// Sends a packet to each of the nodes, and returns those that do not answer: to the end of the tunnel,
/// without one to the `InternalIP`, because a node without pods has no address of its pod CIDR.
fn silent(node: &Node, networks: &BTreeMap<IpNetwork, Peer>) -> Vec<String> {
    let target = |network: &IpNetwork, peer: &Peer| {
        let route = node.routes.iter().find(|it| leads_to(it, *network));
        let link = route.and_then(|it| node.link(it.links().next()?));
        let is_tunnel = |name: &str| name == DEVICE || NAMES.contains(&name);
        let has_tunnel = link.is_some_and(|it| is_tunnel(&it.name));
        if has_tunnel {
            network.network()
        } else {
            peer.address
        }
    };
    let targets: Vec<_> = networks
        .iter()
        .map(|(network, peer)| (target(network, peer), &peer.name))
        .collect();
    let mut silent = Vec::new();
    for some in targets.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let tries: Vec<_> = some
                .iter()
                .map(|(address, _)| scope.spawn(|| answers(*address)))
                .collect();
            let outcomes = some.iter().zip(tries);
            silent.extend(outcomes.filter_map(|((address, name), tried)| {
                let is_silent = !tried.join().unwrap_or(true);
                is_silent.then(|| format!("{address} (node {name})"))
            }));
        });
    }
    silent
}

/// Returns whether the host answers a connection, if only to refuse it.
fn answers(address: IpAddr) -> bool {
    let tried = TcpStream::connect_timeout(&(address, DISCARD).into(), PATIENCE);
    tried.map_or_else(
        |error| error.kind() == ErrorKind::ConnectionRefused,
        |_| true,
    )
}

fn words(network: IpNetwork, peer: &Peer) -> String {
    format!("{network} (node {})", peer.name)
}

fn ok(state: &State, networks: usize) -> String {
    let others = state.nodes.len().saturating_sub(1);
    format!(
        "{} to the pods of {}",
        count(networks, "route"),
        count(others, "other node")
    )
}

/// The port that no host uses, and number of hosts that are tried at a time.
const DISCARD: u16 = 9;
const AT_ONCE: usize = 128;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

const SILENT: &str = "The node is down, or a firewall drops packets between the nodes: those of the tunnel's UDP \
                      port, or TCP packets to port 9, which were tried.";
const UNREACHED: &str = "Pods of this node and of the other one do not reach each other.";
const UNREPAIRED: &str = "Pods of this node and of the other one do not reach each other. cni-agent repairs \
                          routes; if it runs, its log says why it does not.";
