//! Checks ranges of addresses: they must not overlap each other or the node's networks, and must
//! have free addresses, and those of all live pods.

use std::collections::BTreeSet;

use attach::GatewayConflict;
use ipnetwork::IpNetwork;
use itertools::Itertools as _;
use netlink::{Link, LinkKind, Route};
use node::{Lease, Node, Range, is_looked_up};
use upkeep::{Candidate, Liveness, liveness};

use super::edit;
use super::finding::{Finding, Level, count, or_ok, quoted, some_of};

/// Reports ranges of host-local that overlap each other or the node's networks, sets of ranges with
/// few free addresses, and addresses of pods that are in no range.
pub fn judge(node: &Node) -> Vec<Finding> {
    let sources = node.configuration.sources();
    let ranges: Vec<_> = sources.flat_map(Range::all_of).collect();
    let mut findings = overlaps(&ranges);
    for range in &ranges {
        findings.extend(outer_gateway(node, range));
        findings.extend(foreign_addresses(node, range));
        findings.extend(foreign_routes(node, range));
        findings.extend(discarding_routes(node, range));
    }
    let sets = ranges.chunk_by(Range::is_of_set_of);
    findings.extend(sets.filter_map(|set| fill(node, set)));
    let networks: BTreeSet<_> = ranges.iter().map(|it| it.source.name()).collect();
    let strays = networks.into_iter();
    findings.extend(strays.filter_map(|it| stray_addresses(node, it, &ranges)));
    let ok = || format!("no overlap, and free addresses: {}", some_of(&ranges));
    or_ok(findings, (!ranges.is_empty()).then(ok))
}

/// Finds overlapping ranges of one network or of different networks.
fn overlaps(ranges: &[Range<'_>]) -> Vec<Finding> {
    let pairs = ranges.iter().array_combinations();
    let overlaps = pairs.filter(|[one, other]| other.overlaps(one));
    let findings = overlaps.map(|[one, other]| {
        let file = |it: &Range<'_>| it.source.file.name.clone();
        let of = |it: &Range<'_>| format!("{it} of {} ({})", it.source.name(), file(it));
        let message = format!("{} overlaps {}", of(one), of(other));
        if file(one) == file(other) {
            return Finding::problem(message).impact("host-local refuses it: every ADD fails.");
        }
        let impact = "If both networks are used, two pods may get the same address, unless they \
             share one bridge and one directory of leases.";
        Finding::warning(message).impact(impact)
    });
    findings.collect()
}

/// Finds a gateway outside the subnet of a network of `bridge`. The pods have no route to it.
fn outer_gateway(node: &Node, range: &Range<'_>) -> Option<Finding> {
    let source = range.source;
    let gateway = range.gateway()?.ip();
    source.bridge()?;
    let file = &source.file.name;
    let message = format!("{file}: the gateway {gateway} is outside {range}");
    let finding = if range.needs_gateway() {
        Finding::new(Level::of_file(node, file), message)
            .impact("The kernel refuses the pods' routes by that gateway: every ADD fails.")
    } else {
        Finding::warning(message).impact("Pods have no route to it.")
    };
    let is_used = source.is_gateway() || range.needs_gateway();
    (is_used && !range.subnet.contains(gateway)).then(|| finding.fix(edit::open(&source.place())))
}

/// Finds addresses of the node on links that do not belong to the pods' network. An address is a
/// fault if its subnet overlaps the pods' subnet. A single address (/32, /128) is a fault only if
/// it is in the range.
fn foreign_addresses(node: &Node, range: &Range<'_>) -> Vec<Finding> {
    let addresses = node.addresses.iter().filter(|it| !it.is_link_local);
    let foreign = addresses.filter(|it| !range.is_own_link(node.link_name(it.link)));
    let foreign = foreign.filter(|it| !range.is_gateway_of_pairs(it.address));
    let overlapping = foreign.filter(|it| concerns(it.address, range));
    let finding = |address: &netlink::Address| {
        let (link, own) = (node.link_name(address.link), address.address);
        let network = range.source.name();
        let message = format!("{range} of {network} overlaps the node's own {own} on {link}");
        let is_wider = range.subnet.prefix() > own.prefix();
        let conflict = conflict(node, range, address);
        let refusal = conflict.and_then(|it| it.refusal(&node.routes, &node.neighbours));
        let impact = match refusal {
            _ if !is_wider => {
                "Packets to pods leave by that link, or the node looks for pods there.".to_owned()
            }
            _ if range.leases(own.ip()) => "A pod may get the node's own address.".to_owned(),
            Some(refusal) => format!("ADD fails because of the gateway's address: {refusal}."),
            None => {
                let claim = conflict.and_then(|it| it.claim(&node.neighbours));
                let claim = claim.map_or_else(String::new, |it| format!(" On {link}, {it}."));
                let impact = format!(
                    "Neighbours on {link} with addresses of {range} cannot be reached.{claim}"
                );
                return Finding::warning(message).impact(impact);
            }
        };
        let finding = Finding::problem(message).impact(impact);
        finding.fix(edit::open(&range.source.place()))
    };
    overlapping.map(finding).collect()
}

/// Returns the conflict of the gateway of `range` with `other`, an address of another link, if ADD
/// would find it. It does not in these cases:
///
/// - The pods' bridge already has an address in the subnet, or with `ptp`, a host end has the
///   gateway's address.
/// - The other link has no MAC: then it is a tunnel and has no neighbours.
fn conflict(node: &Node, range: &Range<'_>, other: &netlink::Address) -> Option<GatewayConflict> {
    let conflict = GatewayConflict {
        gateway: range.gateway()?.ip(),
        subnet: range.subnet,
        connected: other.address,
        link: other.link,
    };
    let is_own = |it: &netlink::Address| {
        let is_of_bridge = range.is_own_link(node.link_name(it.link));
        range.is_gateway_of_pairs(it.address) || is_of_bridge && concerns(it.address, range)
    };
    let is_asked = range.source.is_gateway() && !node.addresses.iter().any(is_own);
    let is_on_link = conflict.connected.contains(conflict.gateway);
    let has_neighbours = node.link(other.link).is_some_and(|it| it.mac.is_some());
    (is_asked && is_on_link && has_neighbours).then_some(conflict)
}

/// Finds routes to addresses of pods, no wider than the pods' subnet, through a link that is not this
/// network's. Such routes take packets away from the pods.
fn foreign_routes(node: &Node, range: &Range<'_>) -> Vec<Finding> {
    let catches = |route: &&Route| {
        let destination = route.destination;
        let is_special = destination.prefix() >= range.subnet.prefix();
        is_looked_up(route.table) && is_special && range.leases_of(destination)
    };
    let is_foreign = |route: &&Route| {
        let mut links = route.links().filter_map(|it| node.link(it));
        links.any(|it| !is_pods(it, route) && !range.is_own_link(&it.name))
    };
    // The kernel adds a route for each address of a link. Such a route needs no finding, because
    // `foreign_addresses` reports the address.
    let is_of_address = |route: &&Route| {
        let mut addresses = route.links().flat_map(|it| node.addresses_of(it));
        let destination = route.destination.network();
        route.gateway.is_none() && addresses.any(|it| it.address.network() == destination)
    };
    let routes = node.routes.iter().filter(catches).filter(is_foreign);
    let finding = |route: &Route| {
        let link = route.links().next().map_or("?", |it| node.link_name(it));
        let (network, to) = (range.source.name(), route.destination);
        let message = format!("packets to {range} of {network} match the route to {to} by {link}");
        let fix = format!("ip route delete {to} dev {}", quoted(link));
        let finding = Finding::problem(message).impact("Packets to pods leave by that link.");
        finding.fix(fix)
    };
    let routes = routes.filter(|it| !is_of_address(it));
    routes.map(finding).collect()
}

/// Finds routes that drop packets to pods, because they are more specific than the bridge's route
/// or take precedence over it. Checks only networks of `bridge`: `ptp` adds a route for each pod,
/// which is more specific.
fn discarding_routes(node: &Node, range: &Range<'_>) -> Vec<Finding> {
    let bridge = range.source.bridge().and_then(|it| node.link_called(it));
    let catches = |discarding: &&Route| {
        let (destination, table) = (discarding.destination, discarding.table);
        let is_before = |route: &Route| {
            let of_bridge = bridge.is_some_and(|it| route.uses(it.index));
            let is_same = route.destination == destination && route.table == table;
            of_bridge && is_same && route.metric() <= discarding.metric()
        };
        let is_special = destination.prefix() >= range.subnet.prefix();
        let is_of_pods = bridge.is_some() && is_special && range.leases_of(destination);
        is_of_pods && is_looked_up(table) && !node.routes.iter().any(is_before)
    };
    let finding = |it: &Route| {
        let (destination, network) = (it.destination, range.source.name());
        let action = it.discards?;
        let message =
            format!("packets to {destination}, part of {range} of {network}, are dropped");
        let impact = format!("A {action} route takes precedence over the bridge's.");
        let fix = format!("ip route delete {action} {destination}");
        Some(Finding::problem(message).impact(impact).fix(fix))
    };
    let routes = node.discarding_routes.iter().filter(catches);
    routes.filter_map(finding).collect()
}

/// Reports a set of ranges in which at least 90 % of the addresses are leased.
fn fill(node: &Node, set: &[Range<'_>]) -> Option<Finding> {
    let network = set.first()?.source.name();
    let leases = node.leases.iter().filter(|it| it.network == network);
    let of_set = leases.filter(|lease| set.iter().any(|it| it.offers(lease.address)));
    let held = of_set.count() as u128;
    let size: u128 = set.iter().map(Range::size).fold(0, u128::saturating_add);
    let ranges = some_of(set);
    let message = format!("{ranges} of {network}: {held} of {size} addresses are held");
    if held >= size {
        let impact = "No pod gets a network until one is released. Delete pods, or configure a \
             larger range.";
        let finding = Finding::problem(message).impact(impact);
        return Some(finding.fix("cnitool ps"));
    }
    let is_nearly_full = held * 10 >= size * 9;
    is_nearly_full.then(|| Finding::warning(message).impact("It is nearly full."))
}

/// Finds addresses of live pods that are in none of the network's ranges. Knows no ranges that a
/// runtime passes.
fn stray_addresses(node: &Node, network: &str, ranges: &[Range<'_>]) -> Option<Finding> {
    let ranges = || ranges.iter().filter(|it| it.source.name() == network);
    let mut passed = ranges().flat_map(|it| &it.source.plugin.capabilities);
    if passed.any(|it| it == "ipRanges") {
        return None;
    }
    let is_stray = |lease: &&Lease| {
        let is_live = |it: &Candidate| liveness(node, it) == Liveness::Live;
        lease.network == network
            && !ranges().any(|it| it.leases(lease.address))
            && Candidate::of_lease(node, lease).is_some_and(|it| is_live(&it))
    };
    let strays = node.leases.iter().filter(is_stray);
    let strays: Vec<_> = strays.map(|it| it.address).collect();
    let number = count(strays.len(), "address");
    let addresses = some_of(&strays);
    let message =
        format!("network {network}: {number} of live pods in none of its ranges: {addresses}");
    let impact = "The ranges have changed since. Other nodes may use these addresses or have no \
                  route to them: recreate the pods.";
    (!strays.is_empty()).then(|| Finding::warning(message).impact(impact))
}

/// Returns whether `route` is for a single pod and `link` is a veth link, such as the host's end of
/// the pod's veth pair. `ptp` adds such routes.
fn is_pods(link: &Link, route: &Route) -> bool {
    link.kind == LinkKind::Veth && is_single(route.destination)
}

/// Returns whether `network` may contain addresses of pods: it overlaps the subnet of `range`. A
/// single address, such as a tunnel's, must be in the range itself, because pods get no other
/// addresses of the subnet.
fn concerns(network: IpNetwork, range: &Range<'_>) -> bool {
    overlap(network, range.subnet) && (!is_single(network) || range.leases(network.ip()))
}

fn is_single(network: IpNetwork) -> bool {
    network.prefix() == if network.is_ipv4() { 32 } else { 128 }
}

fn overlap(one: IpNetwork, other: IpNetwork) -> bool {
    one.contains(other.network()) || other.contains(one.network())
}

#[cfg(test)]
mod tests;
