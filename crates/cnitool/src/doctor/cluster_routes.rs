//! Checks whether this node has a route to the pods of each other node of its cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::Duration;

use cluster::{DEVICE, NAMES, Peer, State, mac};
use ipnetwork::IpNetwork;
use netlink::{Link, MacAddress, Route};
use netns::Sysctl;
use node::{Node, is_looked_up};

use super::finding::{Finding, count, or_ok, quoted, some_of};

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
        match used(node, *network) {
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
    let tried = tried(node, &peers.networks);
    findings.extend(strict(node, &tried));
    or_ok(findings, Some(ok(state, peers.networks.len(), &tried)))
}

/// Returns the route that packets to the network take.
fn used(node: &Node, network: IpNetwork) -> Option<&Route> {
    let routes = node.routes.iter().filter(|it| leads_to(it, network));
    routes.min_by_key(|it| it.priority)
}

/// A direct route that the agent tries, beside one through a tunnel.
struct Tried<'n> {
    node: &'n str,
    link: &'n Link,
    is_ipv4: bool,
    is_used: bool,
}

fn tried<'n>(node: &'n Node, networks: &'n BTreeMap<IpNetwork, Peer>) -> Vec<Tried<'n>> {
    let tried = networks.iter().filter_map(|(network, peer)| {
        let used = link_of(node, used(node, *network)?)?;
        let routes = node.routes.iter().filter(|it| leads_to(it, *network));
        let (tunnels, others): (Vec<_>, Vec<_>) = routes
            .filter_map(|it| link_of(node, it))
            .partition(|it| is_tunnel(it));
        tunnels.first()?;
        Some(Tried {
            node: &peer.name,
            link: others.first()?,
            is_ipv4: network.is_ipv4(),
            is_used: !is_tunnel(used),
        })
    });
    tried.collect()
}

/// Finds links that drop the packets by which the agent tries direct routes.
fn strict(node: &Node, tried: &[Tried<'_>]) -> Option<Finding> {
    let key = |link: &str| Sysctl::ipv4(link, "rp_filter").key();
    let value = |link: &str| node.sysctl(&key(link));
    let is_strict = |link: &Link| value("all").max(value(&link.name)) == Some("1");
    let mut kept = tried.iter().filter(|it| it.is_ipv4 && !it.is_used);
    let link = &kept.find(|it| is_strict(it.link))?.link.name;
    let message =
        format!("rp_filter of {link} is 1, so packets to nodes of its network stay in VXLAN");
    let fix = format!("sysctl -w {}", quoted(&format!("{}=2", key(link))));
    Some(Finding::warning(message).impact(STRICT).fix(fix))
}

fn link_of<'n>(node: &'n Node, route: &Route) -> Option<&'n Link> {
    node.link(route.links().next()?)
}

fn is_tunnel(link: &Link) -> bool {
    link.name == DEVICE || NAMES.contains(&link.name.as_str())
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
    let link = link_of(node, route)?;
    if state.is_encrypted {
        let is_right = link.name == DEVICE;
        return (!is_right).then(|| format!("leads to {}, not to {DEVICE}", link.name));
    }
    let Some(gateway) = route.gateway else {
        return Some(format!("leads to no gateway, but to {}", link.name));
    };
    if !is_tunnel(link) {
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
        let link = used(node, *network).and_then(|it| link_of(node, it));
        if link.is_some_and(is_tunnel) {
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

fn ok(state: &State, networks: usize, tried: &[Tried<'_>]) -> String {
    let others = state.nodes.len().saturating_sub(1);
    let named = |is_used, way: &str| {
        let nodes = tried.iter().filter(|it| it.is_used == is_used);
        let nodes: BTreeSet<_> = nodes.map(|it| it.node).collect();
        if nodes.is_empty() {
            return String::new();
        }
        format!("; {way} {}", some_of(nodes))
    };
    format!(
        "{} to the pods of {}{}{}",
        count(networks, "route"),
        count(others, "other node"),
        named(true, "directly to"),
        named(false, "by VXLAN, without direct answers, to"),
    )
}

/// The port that no host uses, and number of hosts that are tried at a time.
const DISCARD: u16 = 9;
const AT_ONCE: usize = 128;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

const STRICT: &str = "The nodes do not answer directly: the kernel drops packets of pods whose route back is the \
                      tunnel. Pods reach each other, but more slowly.";
const SILENT: &str = "The node is down, or a firewall drops packets between the nodes: those of the tunnel's UDP \
                      port, or TCP packets to port 9, which were tried.";
const UNREACHED: &str = "Pods of this node and of the other one do not reach each other.";
const UNREPAIRED: &str = "Pods of this node and of the other one do not reach each other. cni-agent repairs \
                          routes; if it runs, its log says why it does not.";
