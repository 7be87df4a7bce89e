//! Checks uplinks: the links that packets of pods use to leave the node.

use netlink::{Carrier, Link, LinkKind, Route};
use node::{Node, Source, is_looked_up, owner_of};

use super::finding::{Finding, or_ok, quoted, some_of};
use super::forwarding;

/// Checks whether the node can forward packets by each of its default routes. Returns no findings
/// if the host is the gateway of no network, because then it forwards nothing for containers.
pub fn judge(node: &Node) -> Vec<Finding> {
    if !node.configuration.sources().any(Source::is_gateway) {
        return Vec::new();
    }
    let mut findings = discarding(node);
    let uplinks = node.uplinks();
    let links = uplinks.iter();
    findings.extend(links.clone().filter_map(|it| without_carrier(&uplinks, it)));
    findings.extend(links.filter_map(|it| not_forwarding(node, it)));
    if uplinks.is_empty() {
        findings.extend(node.links.iter().filter_map(|it| down(node, it)));
    }
    let ok = match some_of(uplinks.iter().map(|it| &it.name)) {
        names if names.is_empty() => NO_UPLINK.to_owned(),
        names => format!("default routes use {names}"),
    };
    or_ok(findings, Some(ok))
}

/// Finds default routes that drop packets and take precedence over all default routes that forward
/// packets.
fn discarding(node: &Node) -> Vec<Finding> {
    let default = node.discarding_routes.iter();
    let default = default.filter(|it| it.destination.prefix() == 0 && is_looked_up(it.table));
    let before = default.filter(|discarding| {
        let mut routes = node.routes.iter();
        !routes.any(|route| {
            let is_same = route.destination == discarding.destination;
            is_same && route.table == discarding.table && route.metric() < discarding.metric()
        })
    });
    // The kernel itself adds an unreachable default route for IPv6, with the lowest precedence.
    // That route is not a fault.
    let chosen = before.filter(|it| it.destination.is_ipv4() || it.metric() != u32::MAX);
    let finding = |route: &Route| {
        let (action, priority) = (route.discards?, route.metric());
        let version = if route.destination.is_ipv4() { 4 } else { 6 };
        let message = format!("the default route is {action}, with metric {priority}");
        let fix = format!("ip -{version} route delete {action} default metric {priority}");
        Some(Finding::problem(message).impact(NOTHING).fix(fix))
    };
    chosen.filter_map(finding).collect()
}

fn without_carrier(uplinks: &[&Link], link: &Link) -> Option<Finding> {
    let message = format!("{}, which a default route uses, has no carrier", link.name);
    let mut others = uplinks.iter().filter(|it| it.index != link.index);
    let finding = if others.all(|it| it.carrier == Carrier::Off) {
        Finding::problem(message).impact(NOTHING)
    } else {
        let impact = "Packets that take this route are lost; another default route works.";
        Finding::warning(message).impact(impact)
    };
    let fix = format!("ip link set {} up", quoted(&link.name));
    (link.carrier == Carrier::Off).then(|| finding.fix(fix))
}

/// Finds an uplink that does not forward. The kernel drops packets for pods that arrive through
/// such a link (`ip_route_input_slow` in `net/ipv4/route.c`), so pods get no answers.
fn not_forwarding(node: &Node, link: &Link) -> Option<Finding> {
    let key = forwarding::not_forwarding(node, &link.name)?;
    let finding = Finding::problem(format!("{key} is 0"))
        .impact("The kernel drops answers to pods that arrive by this link.");
    Some(finding.fix(forwarding::set(&[&key])))
}

/// Returns a problem if the link is down, has an address, and may lead to other hosts. The caller
/// calls this function only if the node has no default route.
fn down(node: &Node, link: &Link) -> Option<Finding> {
    let name = &link.name;
    let has_address = node.addresses_of(link.index).any(|it| !it.is_link_local);
    let is_ours = node.configuration.bridges().contains(name.as_str()) || owner_of(link).is_some();
    let is_inner = is_ours || link.master.is_some() || leads_nowhere(node, link);
    (has_address && !link.is_up && !is_inner).then(|| {
        let message = format!("{name} is down, and there is no default route");
        Finding::problem(message)
            .impact("The kernel deletes routes by a link that goes down: pods reach nothing there.")
            .fix(format!("ip link set {} up", quoted(name)))
    })
}

/// Returns whether no other host can be behind the link. kube-proxy, for example, adds the
/// addresses of Services to such a link, which is always down. So it is no fault that this link is
/// down.
fn leads_nowhere(node: &Node, link: &Link) -> bool {
    match &link.kind {
        LinkKind::Loopback | LinkKind::Dummy => true,
        LinkKind::Bridge => node.ports(link.index).next().is_none(),
        _ => false,
    }
}

const NO_UPLINK: &str = "there is no default route: pods reach only networks of the node's links";

const NOTHING: &str = "Pods reach nothing beyond the node, nor does the node.";
