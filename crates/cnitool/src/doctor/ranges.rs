//! Ranges of addresses: whether they overlap each other or what the node has itself, and whether
//! anything is left of them.

use ipnetwork::IpNetwork;
use netlink::{DiscardingRoute, Link, LinkKind, Route};
use node::{Node, is_looked_up};

use super::finding::{Finding, quoted, some_of};
use super::range::Range;

/// Of each range that host-local is configured with.
pub fn judge(node: &Node) -> Vec<Finding> {
    let sources = node.configuration.sources();
    let ranges: Vec<_> = sources.flat_map(Range::all_of).collect();
    let mut findings = overlaps(&ranges);
    for range in &ranges {
        findings.extend(foreign_addresses(node, range));
        findings.extend(foreign_routes(node, range));
        findings.extend(discarding_routes(node, range));
    }
    let sets = ranges.chunk_by(Range::is_of_set_of);
    findings.extend(sets.filter_map(|set| fill(node, set)));
    if findings.is_empty() && !ranges.is_empty() {
        let found = format!("no overlap, and room: {}", some_of(&ranges));
        findings.push(Finding::ok(SUBJECT, found));
    }
    findings
}

/// Ranges of different networks, or of one in different files, that both would lease from.
fn overlaps(ranges: &[Range<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (place, one) in ranges.iter().enumerate() {
        let later = ranges.iter().skip(place + 1);
        for other in later.filter(|it| it.overlaps(one)) {
            let found = format!(
                "{one} of {} ({}) overlaps {other} of {} ({})",
                one.network(),
                one.file(),
                other.network(),
                other.file()
            );
            findings.push(if one.file() == other.file() {
                Finding::problem(SUBJECT, found).means("host-local refuses it: every ADD fails.")
            } else {
                Finding::warning(SUBJECT, found).means(
                    "Where both networks are used, two pods get the same address, unless one \
                     bridge and one directory of leases serve both.",
                )
            });
        }
    }
    findings
}

/// Networks that the node is in by another link than the pods'.
fn foreign_addresses(node: &Node, range: &Range<'_>) -> Vec<Finding> {
    let addresses = node.addresses.iter().filter(|it| !it.is_link_local);
    let foreign = addresses.filter(|it| !range.is_own_link(node.link_name(it.link)));
    let overlapping = foreign.filter(|it| concerns(it.address, range));
    let finding = |address: &netlink::Address| {
        let link = node.link_name(address.link);
        let found = format!(
            "{range} of {} overlaps the node's own {} on {link}",
            range.network(),
            address.address
        );
        if range.subnet.prefix() > address.address.prefix() {
            return Finding::warning(SUBJECT, found).means(format!(
                "Neighbours on {link} with addresses of {} cannot be reached.",
                range.subnet
            ));
        }
        Finding::problem(SUBJECT, found)
            .means("Packets to pods leave by that link, or the node takes pods for neighbours.")
            .mend(mend(node, range))
    };
    overlapping.map(finding).collect()
}

/// Routes by another link that catch packets to pods: as specific as the pods' own, or more.
fn foreign_routes(node: &Node, range: &Range<'_>) -> Vec<Finding> {
    let catches = |route: &&Route| {
        let destination = route.destination;
        let is_special = destination.prefix() >= range.subnet.prefix();
        is_looked_up(route.table) && is_special && concerns(destination, range)
    };
    let is_foreign = |route: &&Route| {
        let mut links = route.links().filter_map(|it| node.link(it));
        links.any(|it| !is_pods(it, route) && !range.is_own_link(&it.name))
    };
    // Those that come with an address are told with it.
    let is_of_address = |route: &&Route| {
        route.gateway.is_none()
            && node.addresses.iter().any(|it| {
                route.links().any(|link| link == it.link)
                    && it.address.network() == route.destination.network()
            })
    };
    let routes = node.routes.iter().filter(catches).filter(is_foreign);
    let finding = |route: &Route| {
        let link = route.links().next().map_or("?", |it| node.link_name(it));
        let found = format!(
            "{range} of {} is caught by the route to {} by {link}",
            range.network(),
            route.destination
        );
        Finding::problem(SUBJECT, found)
            .means("Packets to pods leave by that link.")
            .mend(format!(
                "ip route delete {} dev {}",
                route.destination,
                quoted(link)
            ))
    };
    routes
        .filter(|it| !is_of_address(it))
        .map(finding)
        .collect()
}

/// Routes that drop packets to pods: more specific than the bridge's own, or before it. Other
/// plugins than `bridge` make a route for each pod, which is more specific.
fn discarding_routes(node: &Node, range: &Range<'_>) -> Vec<Finding> {
    let bridge = range.bridge().and_then(|it| node.link_called(it));
    let catches = |it: &&DiscardingRoute| {
        let is_before = |route: &Route| {
            let of_bridge = bridge.is_some_and(|bridge| route.links().any(|it| it == bridge.index));
            let is_same = route.destination == it.destination && route.table == it.table;
            of_bridge && is_same && route.priority.unwrap_or_default() <= it.priority
        };
        let is_special = it.destination.prefix() >= range.subnet.prefix();
        let catches = bridge.is_some() && is_special && concerns(it.destination, range);
        catches && is_looked_up(it.table) && !node.routes.iter().any(is_before)
    };
    let finding = |it: &DiscardingRoute| {
        let (action, destination, network) = (it.action, it.destination, range.network());
        let found = format!("packets to {destination}, part of {range} of {network}, are dropped");
        Finding::problem(SUBJECT, found)
            .means(format!("A {action} route is before that of the bridge."))
            .mend(format!("ip route delete {action} {destination}"))
    };
    let routes = node.discarding_routes.iter().filter(catches);
    routes.map(finding).collect()
}

/// How much is left of the ranges of one set.
fn fill(node: &Node, set: &[Range<'_>]) -> Option<Finding> {
    let network = set.first()?.network();
    let leases = node.leases.iter().filter(|it| it.network == network);
    let of_set = leases.filter(|lease| set.iter().any(|it| it.leases(lease.address)));
    let held = of_set.count() as u128;
    let size: u128 = set.iter().map(Range::size).fold(0, u128::saturating_add);
    let found = format!(
        "{} of {network}: {held} of {size} addresses are held",
        some_of(set)
    );
    if held >= size {
        let means = "No pod gets a network until one is released.";
        let mend = format!("cnitool gc {}", quoted(network));
        return Some(Finding::problem(SUBJECT, found).means(means).mend(mend));
    }
    let is_nearly_full = held * 10 >= size * 9;
    is_nearly_full.then(|| Finding::warning(SUBJECT, found).means("It is nearly full."))
}

fn mend(node: &Node, range: &Range<'_>) -> String {
    let file = node.configuration.directory.join(range.file());
    format!("vi {}", quoted(&file.display()))
}

/// It leads to a pod and to nothing else, as plugins without bridge have it.
fn is_pods(link: &Link, route: &Route) -> bool {
    let whole = if route.destination.is_ipv4() { 32 } else { 128 };
    link.kind == LinkKind::Veth && route.destination.prefix() == whole
}

/// Packets to pods go there: a single address, as tunnels have it, may be one that no pod gets.
fn concerns(network: IpNetwork, range: &Range<'_>) -> bool {
    let is_single = network.prefix() == if network.is_ipv4() { 32 } else { 128 };
    overlap(network, range.subnet) && (!is_single || range.leases(network.ip()))
}

fn overlap(one: IpNetwork, other: IpNetwork) -> bool {
    one.is_ipv4() == other.is_ipv4()
        && (one.contains(other.network()) || other.contains(one.network()))
}

const SUBJECT: &str = "range";

#[cfg(test)]
mod tests;
