//! Checks whether this node has a route to the pods of each other node of its cluster.

use cluster::{NAMES, Peer, State};
use ipnetwork::IpNetwork;
use netlink::Route;
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
            Some(route) => wrong.extend(fault(node, route, peer).map(|it| {
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
    or_ok(findings, Some(ok(state, peers.networks.len())))
}

fn leads_to(route: &Route, network: IpNetwork) -> bool {
    is_looked_up(route.table)
        && route.destination.prefix() == network.prefix()
        && route.destination.ip() == network.network()
}

/// Returns why packets that take the route do not reach the node.
fn fault(node: &Node, route: &Route, peer: &Peer) -> Option<String> {
    let link = route.links().next().and_then(|it| node.link(it))?;
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
    (!is_known).then(|| format!("uses {}, which has no entry for {gateway}", link.name))
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

const UNREACHED: &str = "Pods of this node and of the other one do not reach each other.";
const UNREPAIRED: &str = "Pods of this node and of the other one do not reach each other. cni-agent repairs \
                          routes; if it runs, its log says why it does not.";
