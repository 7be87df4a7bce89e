//! Uplinks: the links that packets of pods leave the node through.

use netlink::{Carrier, Link, LinkKind};
use node::{Node, Source, is_looked_up};

use super::finding::{Finding, quoted, some_of};

/// Of each default route, where a network's packets are routed.
pub fn judge(node: &Node) -> Vec<Finding> {
    if !node.configuration.sources().any(Source::is_gateway) {
        return Vec::new();
    }
    let mut findings = discarding(node);
    let uplinks = node.uplinks();
    findings.extend(
        uplinks
            .iter()
            .filter_map(|it| without_carrier(&uplinks, it)),
    );
    findings.extend(uplinks.iter().filter_map(|it| not_forwarding(node, it)));
    if uplinks.is_empty() {
        findings.extend(node.links.iter().filter_map(|it| down(node, it)));
    }
    if findings.is_empty() {
        let names: Vec<_> = uplinks.iter().map(|it| &it.name).collect();
        let found = match names.as_slice() {
            [] => "there is no default route: pods reach what the node is connected to".to_owned(),
            names => format!("default routes lead by {}", some_of(names)),
        };
        findings.push(Finding::ok(SUBJECT, found));
    }
    findings
}

/// Default routes that drop packets, before any that forwards them.
fn discarding(node: &Node) -> Vec<Finding> {
    let default = node.discarding_routes.iter();
    let default = default.filter(|it| it.destination.prefix() == 0 && is_looked_up(it.table));
    let before = default.filter(|it| {
        let mut routes = node.routes.iter();
        !routes.any(|route| {
            let is_same = route.destination == it.destination && route.table == it.table;
            is_same && route.priority.unwrap_or_default() < it.priority
        })
    });
    // The kernel's own route of IPv6 for what no other route leads to.
    let chosen = before.filter(|it| it.destination.is_ipv4() || it.priority != u32::MAX);
    let finding = |it: &netlink::DiscardingRoute| {
        let (action, priority) = (it.action, it.priority);
        let version = if it.destination.is_ipv4() { "-4" } else { "-6" };
        let found = format!("the default route is {action}, with metric {priority}");
        Finding::problem(SUBJECT, found)
            .means("Pods reach nothing beyond the node, nor does the node.")
            .mend(format!(
                "ip {version} route delete {action} default metric {priority}"
            ))
    };
    chosen.map(finding).collect()
}

fn without_carrier(uplinks: &[&Link], link: &Link) -> Option<Finding> {
    let name = &link.name;
    let is_only = uplinks
        .iter()
        .all(|it| it.index == link.index || it.carrier == Carrier::Off);
    let found = format!("{name}, by which a default route leads, has no carrier");
    let finding = if is_only {
        let means = "Pods reach nothing beyond the node, nor does the node.";
        Finding::problem(SUBJECT, found).means(means)
    } else {
        let means = "What takes this route is lost; another default route works.";
        Finding::warning(SUBJECT, found).means(means)
    };
    let mend = format!("ip link set {} up", quoted(name));
    (link.carrier == Carrier::Off).then(|| finding.mend(mend))
}

/// The kernel drops what comes in by a link that does not forward (`ip_route_input_slow` in
/// `net/ipv4/route.c`): the answers to pods.
fn not_forwarding(node: &Node, link: &Link) -> Option<Finding> {
    let key = format!("net.ipv4.conf.{}.forwarding", link.name.replace('.', "/"));
    let is_node = node.sysctls.value("net.ipv4.ip_forward") == Some("1");
    (is_node && node.sysctls.value(&key) == Some("0")).then(|| {
        let word = quoted(&format!("{key}=1"));
        Finding::problem(SUBJECT, format!("{key} is 0"))
            .means("Answers to pods are dropped where they come in.")
            .mend(format!(
                "sysctl -w {word}\nprintf '%s\\n' {word} >> {SYSCTLS}"
            ))
    })
}

/// A link that is down and has addresses, where nothing else leads out of the node.
fn down(node: &Node, link: &Link) -> Option<Finding> {
    let mut addresses = node.addresses.iter().filter(|it| it.link == link.index);
    let has_address = addresses.any(|it| !it.is_link_local);
    let bridges = node.configuration.bridges();
    let is_ours = bridges.contains(link.name.as_str()) || link.alias.is_some();
    let is_inner = is_ours || link.master.is_some() || leads_nowhere(node, link);
    (has_address && !link.is_up && !is_inner).then(|| {
        let name = &link.name;
        Finding::problem(
            SUBJECT,
            format!("{name} is down, and there is no default route"),
        )
        .means("The kernel deletes routes by a link that goes down: pods reach nothing there.")
        .mend(format!("ip link set {} up", quoted(name)))
    })
}

/// No packet leaves the node by it: kube-proxy, for one, has the addresses of Services on such a
/// link, which is down.
fn leads_nowhere(node: &Node, link: &Link) -> bool {
    match &link.kind {
        LinkKind::Loopback => true,
        LinkKind::Bridge => node.ports(link.index).next().is_none(),
        LinkKind::Other(kind) => kind == "dummy",
        _ => false,
    }
}

/// Read at the start of the node.
const SYSCTLS: &str = "/etc/sysctl.d/cni.conf";

const SUBJECT: &str = "uplink";
