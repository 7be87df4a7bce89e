//! Checks the pair of each live attachment: it is on its bridge and up, and has the addresses and
//! the default route that ADD reported.

use netlink::Link;
use node::{Attached, Inside, Node, Pod, bridge_of};
use runtime::PluginConfig;

use super::finding::{Finding, quoted};

/// Reports only the first fault of each attachment, because the next ones often follow from it.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings: Vec<_> = node.pods.iter().filter_map(|it| fault(node, it)).collect();
    if findings.is_empty() && !node.pods.is_empty() {
        let count = node.pods.len();
        let message = format!("{count} attached, each with its link, addresses and routes");
        findings.push(Finding::ok(SUBJECT, message));
    }
    findings
}

fn fault(node: &Node, pod: &Pod) -> Option<Finding> {
    let attached = node.attached.get(pod.attached)?;
    let host_link = node.link(pod.host_link)?;
    let on_host = master(node, attached, host_link).or_else(|| host_link_down(attached, host_link));
    on_host.or_else(|| match &pod.inside {
        Ok(inside) => inside_fault(attached, inside),
        Err(reason) => {
            let message = format!("{} was not checked: {reason}", owner(attached));
            let impact = "Its sandbox cannot be entered from here; doctor has to run on the node.";
            Some(Finding::warning(SUBJECT, message).impact(impact))
        }
    })
}

/// Finds a host's end that is not on its bridge. A bridge that does not exist is reported once with
/// all its attachments.
fn master(node: &Node, attached: &Attached, host_link: &Link) -> Option<Finding> {
    let network = attached.network(&node.configuration)?;
    let plugin = network.plugins.iter().find(|it| bridge_of(it).is_some())?;
    let bridge = node.link_called(bridge_of(plugin)?)?;
    if host_link.master == Some(bridge.index) {
        return None;
    }
    let (name, bridge) = (&host_link.name, &bridge.name);
    let message = format!("{name} of {} is no port of {bridge}", owner(attached));
    let finding = Finding::problem(SUBJECT, message);
    if PORT_KEYS.iter().any(|key| is_wanted(plugin, key)) {
        return Some(finding.impact(
            "The pod reaches nothing. A port that is added again lacks the configured VLANs, \
             isolation and hairpin mode: recreate the pod.",
        ));
    }
    let fix = format!("ip link set {} master {}", quoted(name), quoted(bridge));
    Some(finding.impact("The pod reaches nothing.").fix(fix))
}

fn is_wanted(plugin: &PluginConfig, key: &str) -> bool {
    let value = cni::json::value(&plugin.config, key);
    value.is_some_and(|it| *it != serde_json::json!(false) && *it != serde_json::json!(0))
}

fn host_link_down(attached: &Attached, host_link: &Link) -> Option<Finding> {
    (!host_link.is_up).then(|| {
        let name = &host_link.name;
        let message = format!("{name} of {} is down", owner(attached));
        Finding::problem(SUBJECT, message)
            .impact("The pod reaches nothing.")
            .fix(format!("ip link set {} up", quoted(name)))
    })
}

fn inside_fault(attached: &Attached, inside: &Inside) -> Option<Finding> {
    let (name, link) = (&inside.link.name, quoted(&inside.link.name));
    let owner = owner(attached);
    let enter = format!(
        "nsenter --net={} ip",
        quoted(&attached.entry.netns().display())
    );
    if !inside.link.is_up {
        let message = format!("{name} of {owner} is down");
        let impact =
            "The pod reaches nothing. The kernel has deleted its IPv6 addresses and routes, too.";
        let finding = Finding::problem(SUBJECT, message).impact(impact);
        return Some(finding.fix(format!("{enter} link set {link} up")));
    }
    let has = |address: &&ipnetwork::IpNetwork| {
        let mut addresses = inside.addresses.iter();
        addresses.any(|it| it.address.ip() == address.ip())
    };
    let reported = attached.addresses();
    if let Some(address) = reported.iter().find(|it| !has(it)) {
        let message = format!("{name} of {owner} lacks its address {address}");
        let impact = "Answers to the pod are lost. A process in the pod may have deleted it.";
        let finding = Finding::problem(SUBJECT, message).impact(impact);
        return Some(finding.fix(format!("{enter} address add {address} dev {link}")));
    }
    let has_default_route = |is_ipv4| {
        let mut routes = inside.routes.iter();
        routes.any(|it| it.is_default() && it.destination.is_ipv4() == is_ipv4)
    };
    FAMILIES.iter().find_map(|(is_ipv4, words)| {
        let gateway = attached.default_gateway(*is_ipv4);
        let gateway = gateway.filter(|_| !has_default_route(*is_ipv4))?;
        let message = format!("{owner} has no default route of {words}");
        let impact = "The pod reaches nothing beyond its own network.";
        let finding = Finding::problem(SUBJECT, message).impact(impact);
        Some(finding.fix(format!(
            "{enter} route add default via {gateway} dev {link}"
        )))
    })
}

fn owner(attached: &Attached) -> String {
    attached.attachment.owner()
}

const FAMILIES: [(bool, &str); 2] = [(true, "IPv4"), (false, "IPv6")];

/// Keys that set up a port besides its bridge.
const PORT_KEYS: [&str; 4] = ["vlan", "vlanTrunk", "portIsolation", "hairpinMode"];

const SUBJECT: &str = "pod";
