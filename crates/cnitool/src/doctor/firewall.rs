//! What the rules of all do to packets of pods, and what of ours a reload took away.

use cni::json;
use netlink::LinkKind;
use nft::{EndVerdict, Ended};
use node::{Attached, Consequence, Fate, Node, PacketPath, Probe, Protocol};
use portmap::{HostAddress, Mapping};
use serde_json::Value;

use super::finding::{Finding, quoted, some_of};

/// Of each bridge whose packets were tried, and of each attachment that has elements.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings: Vec<_> = node.probes.iter().flat_map(|it| barred(node, it)).collect();
    findings.extend(taken_away(node));
    if findings.is_empty() {
        let bridges = node.probes.iter().map(|it| it.bridge.as_str());
        let mut bridges: Vec<_> = bridges.collect();
        bridges.dedup();
        findings.push(match bridges.as_slice() {
            [] => Finding::ok(SUBJECT, "no network has the node as its gateway"),
            bridges => {
                let found = format!("new packets of pods on {} pass", some_of(bridges));
                Finding::ok(SUBJECT, found).means("They were sent through a copy of all rules.")
            }
        });
    }
    findings
}

/// The paths on which packets do not pass, those that end at one place together.
fn barred(node: &Node, probe: &Probe) -> Vec<Finding> {
    let bridge = &probe.bridge;
    let fates = match &probe.fates {
        Ok(fates) => fates,
        Err(reason) => {
            let found = format!("packets of pods on {bridge} could not be tried: {reason}");
            let means = "Whether the rules of the node let them pass is not known.";
            return vec![Finding::warning(SUBJECT, found).means(means)];
        }
    };
    let mut ends: Vec<(&Fate, Vec<PacketPath>)> = Vec::new();
    for (path, fate) in fates.iter().filter(|it| it.1 != Fate::Passed) {
        match ends.iter_mut().find(|it| it.0 == fate) {
            Some((_, paths)) => paths.push(*path),
            None => ends.push((fate, vec![*path])),
        }
    }
    let findings = ends.iter().map(|(fate, paths)| {
        let words: Vec<_> = paths.iter().map(|it| words(*it, bridge)).collect();
        let version = if probe.is_ipv4 { "IPv4" } else { "IPv6" };
        let packets = format!("new {version} packets {}, are", words.join(", "));
        let is_needed = |it: &PacketPath| {
            matches!(
                it,
                PacketPath::ToElsewhere(Protocol::Tcp) | PacketPath::ToHostPort(_)
            )
        };
        let finding = end(node, bridge, (fate, &packets));
        if paths.iter().any(is_needed) && !is_uncertain(fate) {
            return finding;
        }
        Finding {
            level: super::finding::Level::Warning,
            ..finding
        }
    });
    findings.collect()
}

/// A program decides, or no rule was seen.
fn is_uncertain(fate: &Fate) -> bool {
    match fate {
        Fate::Ended(ended) => ended.verdict == EndVerdict::Queue,
        Fate::Lost(rule) => rule.is_none(),
        Fate::Passed => true,
    }
}

fn words(path: PacketPath, bridge: &str) -> String {
    let protocol = |it| match it {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    match path {
        PacketPath::ToElsewhere(it) => {
            format!("from pods on {bridge} to other hosts ({})", protocol(it))
        }
        PacketPath::ToNode(it, port) => {
            format!(
                "from pods on {bridge} to port {port} of the node ({})",
                protocol(it)
            )
        }
        PacketPath::FromNode => format!("from the node to pods on {bridge}"),
        PacketPath::ToHostPort(port) => format!("from other hosts to hostPort {port}"),
    }
}

fn end(node: &Node, bridge: &str, (fate, packets): (&Fate, &str)) -> Finding {
    match fate {
        Fate::Ended(ended) => {
            let verdict = match ended.verdict {
                EndVerdict::Drop => "dropped",
                EndVerdict::Queue => "left to a program",
            };
            let by = match ended.place.handle {
                0 => "its policy".to_owned(),
                handle => format!("the rule with handle {handle}"),
            };
            let found = format!("{packets} {verdict} in {}, by {by}", ended.place);
            let means = "They were sent through a copy of all rules.";
            Finding::problem(SUBJECT, found)
                .means(means)
                .mend(mend(node, bridge, ended))
        }
        Fate::Lost(Some(rule)) => {
            let found = format!("{packets} dropped by {rule}");
            let program = rule.split(' ').next().unwrap_or_default();
            let mend = opened(program, "FORWARD", &quoted(bridge));
            let is_forward = rule.contains("FORWARD") && rule.contains("-t filter:");
            let finding = Finding::problem(SUBJECT, found);
            finding.mend(if is_forward {
                mend
            } else {
                format!("{program}-save -c")
            })
        }
        Fate::Lost(None) | Fate::Passed => {
            let found = format!("{packets} lost, and no rule was seen that drops them");
            let means = "In a copy of all rules they go elsewhere, as a redirection has it, or \
                         tables that are not copied drop them.";
            Finding::problem(SUBJECT, found)
                .means(means)
                .mend("nft list ruleset")
        }
    }
}

/// Where packets enter the chain because they are forwarded, what is for the bridge may pass; what
/// another chain is for is to be seen there.
fn mend(node: &Node, bridge: &str, Ended { place, .. }: &Ended) -> String {
    let (family, bridge) = (place.family(), quoted(bridge));
    let mut chains = node.firewall.chains.iter().filter(|it| it.is_forward);
    let is_forward = chains
        .any(|it| (it.family.name(), &it.table, &it.name) == (family, &place.table, &place.chain));
    let [table, chain] = [&place.table, &place.chain].map(quoted);
    match family {
        "ip" if is_forward && chain == "FORWARD" => opened("iptables", &chain, &bridge),
        "ip6" if is_forward && chain == "FORWARD" => opened("ip6tables", &chain, &bridge),
        _ if is_forward => format!(
            "nft insert rule {family} {table} {chain} iifname {bridge} accept\n\
             nft insert rule {family} {table} {chain} oifname {bridge} accept"
        ),
        _ => format!("nft -a list chain {family} {table} {chain}"),
    }
}

fn opened(program: &str, chain: &str, bridge: &str) -> String {
    format!(
        "{program} -I {chain} -i {bridge} -j ACCEPT\n{program} -I {chain} -o {bridge} -j ACCEPT"
    )
}

/// Attachments that live and lack elements which their configuration asked for.
fn taken_away(node: &Node) -> Option<Finding> {
    let alive = node.attached.iter().filter(|it| it.is_alive);
    // The reference's rules are no elements.
    let ours = alive.filter(|it| is_ours(node, it));
    let lacking = ours.filter_map(|it| lacks(node, it));
    let lacking: Vec<_> = lacking.collect();
    let found = format!("elements are missing: {}", some_of(&lacking));
    (!lacking.is_empty()).then(|| {
        Finding::problem(SUBJECT, found)
            .means(
                "The rules were flushed: hostPorts lead nowhere, pods leave with their own \
                 addresses, their MACs are not checked, and root in one can send more than its limit.",
            )
            .mend("cnitool reload")
    })
}

/// Something of it bears its owner as ours does.
pub fn is_ours(node: &Node, attached: &Attached) -> bool {
    let owner = attached.attachment.owner();
    let mut elements = node.firewall.elements.iter();
    let mut links = node.links.iter();
    elements.any(|it| it.owner == owner) || links.any(|it| it.alias.as_ref() == Some(&owner))
}

/// The attachment, and the first table that it should have an element in and has not.
fn lacks(node: &Node, attached: &Attached) -> Option<String> {
    let owner = attached.attachment.owner();
    let has = |table: &&str| {
        let mut elements = node.firewall.elements.iter();
        elements.any(|it| it.table == *table && it.owner == owner)
    };
    let wanted = tables(node, attached);
    let missing = wanted.iter().find(|table| !has(table))?;
    Some(format!("{owner} in {missing}"))
}

/// The tables in which the attachment should have elements.
pub fn tables(node: &Node, attached: &Attached) -> Vec<&'static str> {
    let owner = attached.attachment.owner();
    let network = attached.entry.network(&node.configuration.directory);
    let plugins = network.ok().flatten().map(|it| it.plugins);
    let mut wanted = Vec::new();
    for plugin in plugins.unwrap_or_default() {
        let is_set = |key| {
            let value = json::value(&plugin.config, key);
            value.and_then(Value::as_bool) == Some(true)
        };
        match plugin.program.as_str() {
            "bridge" => {
                wanted.extend(is_set("ipMasq").then_some(attach::MASQUERADE_TABLE));
                wanted.extend(is_set("macspoofchk").then_some(attach::FRAMES_TABLE));
            }
            "portmap" if has_ports(attached, &plugin.capabilities) => wanted.push(portmap::TABLE),
            "bandwidth" if has_ifb(node, &owner) && can_back(node) => wanted.push(bandwidth::TABLE),
            _ => {}
        }
    }
    wanted
}

/// What it sends is limited.
fn has_ifb(node: &Node, owner: &str) -> bool {
    let mut ifbs = node.links.iter().filter(|it| it.kind == LinkKind::Ifb);
    ifbs.any(|it| it.alias.as_deref() == Some(owner))
}

/// The kernel has what a second limit takes; ADD does without where it has not.
fn can_back(node: &Node) -> bool {
    let mut lacks = node.lacks.iter();
    !lacks.any(|it| it.consequence == Consequence::LimitsEvadable)
}

fn has_ports(attached: &Attached, declared: &[String]) -> bool {
    let asked = attached.entry.arguments().runtime_config(declared);
    let ports = asked.get("portMappings").and_then(Value::as_array);
    let addresses = attached.addresses();
    // A port of the host's address of a family that the pod has no address of is left out.
    let is_served = |mapping: Mapping| {
        let mut addresses = addresses.iter();
        mapping.host == HostAddress::Any || addresses.any(|it| mapping.is_for(it.ip()))
    };
    let mut ports = ports.into_iter().flatten();
    ports.any(|it| Mapping::parse(it).map_or(true, is_served))
}

const SUBJECT: &str = "firewall";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached_by, levels, node};
    use super::*;

    const LIST: &str = r#"{"name": "pods", "plugins": [{"type": "bridge", "isGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}]}"#;

    #[test]
    fn elements_that_a_flush_took_away_are_told() {
        let mut node = node(&[("pods.conflist", LIST)]);
        node.attached = vec![attached_by(LIST, "pods", "a")];
        // It is the reference's.
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.links = vec![netlink::Link {
            alias: Some("cni:pods/a/eth0".to_owned()),
            ..netlink::Link::default()
        }];
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Problem]);
        assert_eq!(findings[0].mend, "cnitool reload");
        node.firewall.elements = vec![node::Held {
            table: "cni-masquerade",
            owner: "cni:pods/a/eth0".to_owned(),
            port: None,
            address: None,
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn a_limit_that_the_kernel_cannot_back_lacks_nothing() {
        const LIMITED: &str =
            r#"{"name": "pods", "plugins": [{"type": "bandwidth", "egressRate": 1000}]}"#;
        let mut node = node(&[("pods.conflist", LIMITED)]);
        node.attached = vec![attached_by(LIMITED, "pods", "a")];
        node.links = vec![netlink::Link {
            alias: Some("cni:pods/a/eth0".to_owned()),
            kind: LinkKind::Ifb,
            ..netlink::Link::default()
        }];
        assert_eq!(levels(&judge(&node)), [Level::Problem]);
        let need = node::Need {
            plugin: "bandwidth",
            keys: &[],
        };
        node.lacks = vec![node::Lack {
            reason: "operation not supported".to_owned(),
            need,
            consequence: Consequence::LimitsEvadable,
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }
}
