//! Checks the veth pair of each live attachment. The host's end has to be up. It has to be a port
//! of its bridge or, with `ptp`, to have the routes to the pod and the gateway's address. The
//! container's end has to be up, and to have the addresses and the default route that ADD reported.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink::{IpVersion, Link};
use node::{Attached, Inside, Node, Pod, bridge_of};
use serde_json::json;
use upkeep::Renamed;

use super::finding::{Finding, or_ok, quoted, some_of};

/// Checks links, addresses and routes of each live attachment, whether its host end has the name that
/// ADD gave it, and whether another attachment of the network has its address. Otherwise reports only
/// the first fault of an attachment, because one fault often causes others.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut faults: Vec<_> = node.pods.iter().filter_map(|it| fault(node, it)).collect();
    faults.extend(Renamed::all(node).iter().map(renamed));
    faults.extend(shared(node));
    let count = node.pods.len();
    let ok = || format!("{count} attached, each with its link, addresses and routes");
    or_ok(faults, (count > 0).then(ok))
}

/// Returns the finding for a renamed host end. The commands give it its name back without setting it
/// down, because the kernel would then delete the host's routes to a pod of `ptp`.
fn renamed(link: &Renamed<'_>) -> Finding {
    let impact = "`macspoofchk`, `isolated` and the second limit of `bandwidth` find a port by its name: \
         until RELOAD, they do not hold for this pod. Before Linux 6.2, the kernel does not rename a link that \
         is up: the second command suffices.";
    let [name, former] = [link.name, &link.former].map(quoted);
    let network = &link.attachment.network;
    let finding = Finding::warning(link.to_string()).impact(impact);
    finding.fix(format!(
        "ip link set {name} name {former}\ncnitool reload {network}"
    ))
}

/// Finds addresses that several attachments of one network have.
fn shared(node: &Node) -> Vec<Finding> {
    let mut owners = BTreeMap::<_, Vec<_>>::new();
    let attached = node.pods.iter();
    for it in attached.filter_map(|it| node.attached.get(it.attached)) {
        for address in it.addresses() {
            let key = (it.attachment.network.as_str(), address.ip());
            owners.entry(key).or_default().push(it.attachment.owner());
        }
    }
    let shared = owners.into_iter().filter(|(_, owners)| owners.len() > 1);
    let findings = shared.map(|((network, address), owners)| {
        let message = format!("{address} of {network} belongs to {}", some_of(owners));
        let impact = "Their packets reach one of them at a time: give each pod its own address.";
        Finding::problem(message).impact(impact).fix("cnitool ps")
    });
    findings.collect()
}

fn fault(node: &Node, pod: &Pod) -> Option<Finding> {
    let attached = node.attached.get(pod.attached)?;
    let host_link = node.link(pod.host_link)?;
    let (name, owner) = (&host_link.name, attached.attachment.owner());
    if let Some(finding) = master(node, attached, host_link) {
        return Some(finding);
    }
    if !host_link.is_up {
        let finding = Finding::problem(format!("{name} of {owner} is down"));
        let fix = format!("ip link set {} up", quoted(name));
        return Some(finding.impact("The pod reaches nothing.").fix(fix));
    }
    if let Some(finding) = routed_fault(node, attached, host_link) {
        return Some(finding);
    }
    match &pod.inside {
        Ok(inside) => inside_fault(attached, inside),
        Err(reason) => {
            let message = format!("{owner} was not checked: {reason}");
            let impact = "Its sandbox cannot be entered from here; doctor has to run on the node.";
            Some(Finding::warning(message).impact(impact))
        }
    }
}

/// Reports a host's end that is no port of its bridge. Another check reports a missing bridge, once
/// for all its attachments.
fn master(node: &Node, attached: &Attached, host_link: &Link) -> Option<Finding> {
    let network = attached.network(&node.configuration)?;
    let mut plugins = network.all_plugins().into_iter();
    let plugin = plugins.find(|it| bridge_of(it).is_some())?;
    let bridge = node.link_called(bridge_of(&plugin)?)?;
    if host_link.master == Some(bridge.index) {
        return None;
    }
    let (name, bridge) = (&host_link.name, &bridge.name);
    let owner = attached.attachment.owner();
    let message = format!("{name} of {owner} is no port of {bridge}");
    let finding = Finding::problem(message);
    let keys = node::facts(&plugin.program).port_keys;
    let mut values = keys.iter().filter_map(|key| plugin.key(key));
    if values.any(|it| *it != json!(false) && *it != json!(0)) {
        return Some(finding.impact(
            "The pod reaches nothing. A port that is added again lacks the configured VLANs, \
             isolation and hairpin mode: recreate the pod.",
        ));
    }
    let fix = format!("ip link set {} master {}", quoted(name), quoted(bridge));
    Some(finding.impact("The pod reaches nothing.").fix(fix))
}

/// Finds what the host's end of a routed veth pair lacks: a route to the pod, or the gateway's
/// address.
fn routed_fault(node: &Node, attached: &Attached, host_link: &Link) -> Option<Finding> {
    let network = attached.network(&node.configuration)?;
    let mut plugins = network.all_plugins().into_iter();
    plugins.find(node::is_routed)?;
    let leads = |address: &IpAddr| {
        let mut routes = node.routes.iter();
        routes.any(|it| it.destination == IpNetwork::from(*address) && it.uses(host_link.index))
    };
    let has = |gateway: &IpAddr| node.has_address(host_link.index, *gateway);
    let addresses = attached.addresses();
    let mut addresses = addresses.iter().map(IpNetwork::ip);
    let gateways = [true, false].into_iter();
    let mut gateways = gateways.filter_map(|it| attached.default_gateway(it));
    let (lost, action) = if let Some(address) = addresses.find(|it| !leads(it)) {
        (
            format!("has no route to {address}"),
            format!("route add {address}"),
        )
    } else {
        let gateway = gateways.find(|it| !has(it))?;
        let lost = format!("lacks the gateway's address {gateway}");
        (lost, format!("address add {}", IpNetwork::from(gateway)))
    };
    let name = &host_link.name;
    let message = format!("{name} of {} {lost}", attached.attachment.owner());
    let finding = Finding::problem(message).impact("The pod is not reached, or reaches nothing.");
    Some(finding.fix(format!("ip {action} dev {}", quoted(name))))
}

fn inside_fault(attached: &Attached, inside: &Inside) -> Option<Finding> {
    let (name, owner) = (&inside.link.name, attached.attachment.owner());
    let problem = |message, impact: &str, command| {
        let path = quoted(&attached.entry.netns().display());
        let fix = format!("nsenter --net={path} ip {command}");
        Some(Finding::problem(message).impact(impact).fix(fix))
    };
    let link = quoted(name);
    if !inside.link.is_up {
        let impact =
            "The pod reaches nothing. The kernel has deleted its IPv6 addresses and routes, too.";
        let message = format!("{name} of {owner} is down");
        return problem(message, impact, format!("link set {link} up"));
    }
    let reported = attached.addresses();
    let held: Vec<_> = inside.addresses.iter().map(|it| it.address.ip()).collect();
    let missing = reported.iter().filter(|it| !held.contains(&it.ip()));
    let missing: Vec<_> = missing.collect();
    if let Some(address) = missing.first() {
        if missing.len() == reported.len() {
            let message = format!("{name} of {owner} has none of its addresses");
            return Some(Finding::warning(message).impact(NO_ADDRESS));
        }
        let impact = "Answers to the pod are lost. A process in the pod may have deleted it.";
        let message = format!("{name} of {owner} lacks its address {address}");
        return problem(message, impact, format!("address add {address} dev {link}"));
    }
    let default = inside.routes.iter().filter(|it| it.is_default());
    let families: Vec<_> = default.map(|it| it.destination.is_ipv4()).collect();
    IpVersion::ALL.iter().find_map(|version| {
        let is_ipv4 = *version == IpVersion::V4;
        let gateway = attached.default_gateway(is_ipv4);
        let gateway = gateway.filter(|_| !families.contains(&is_ipv4))?;
        let impact = "The pod reaches nothing beyond its own network.";
        let message = format!("{owner} has no default route of {version}");
        let command = format!("route add default via {gateway} dev {link}");
        problem(message, impact, command)
    })
}

/// The impact of an interface without addresses. A sandbox of gVisor or Kata has none, so the
/// finding has no fix: a second owner of the addresses would answer ARP, and harm such a pod.
const NO_ADDRESS: &str = "A pod of gVisor or Kata works like this, because its own network stack has the addresses. \
     Any other pod is not reached, and its processes may have deleted them: recreate the pod.";
