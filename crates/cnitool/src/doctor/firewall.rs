//! Checks whether the node's rules drop packets of pods, and whether a reload of the firewall
//! removed elements of this suite.

use netlink::LinkKind;
use nft::{EndVerdict, Ended};
use node::{Attached, Consequence, Fate, Node, PacketPath, Probe, Protocol};
use portmap::{HostAddress, Mapping};
use serde_json::Value;

use super::finding::{Finding, Level, quoted, some_of};

/// Checks the outcomes of the packets that were tried, and the elements of each live attachment.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings: Vec<_> = node.probes.iter().flat_map(|it| barred(node, it)).collect();
    findings.extend(taken_away(node));
    if findings.is_empty() {
        let mut bridges: Vec<_> = node.probes.iter().map(|it| it.bridge.as_str()).collect();
        bridges.dedup();
        findings.push(if bridges.is_empty() {
            Finding::ok(SUBJECT, "no bridge is a gateway, so no packet was tried")
        } else {
            let message = format!("new packets of pods on {} pass", some_of(bridges));
            Finding::ok(SUBJECT, message).impact(COPY)
        });
    }
    findings
}

/// Finds paths on which packets are dropped. Paths on which the same rule or policy drops the
/// packets are one finding.
fn barred(node: &Node, probe: &Probe) -> Vec<Finding> {
    let bridge = &probe.bridge;
    let fates = match &probe.fates {
        Ok(fates) => fates,
        Err(reason) => {
            let message = format!("packets of pods on {bridge} could not be tried: {reason}");
            let impact = "It is unknown whether the node's rules accept them.";
            return vec![Finding::warning(SUBJECT, message).impact(impact)];
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
        let finding = end(node, probe, fate, &packets);
        let is_needed = |it: &PacketPath| {
            let tcp = PacketPath::ToElsewhere(Protocol::Tcp);
            *it == tcp || matches!(it, PacketPath::ToHostPort(_))
        };
        // A program in user space decides about the packet, or no rule was seen to drop it.
        let is_uncertain = match fate {
            Fate::Ended(ended) => ended.verdict == EndVerdict::Queue,
            fate => **fate == Fate::Lost(None),
        };
        if paths.iter().any(is_needed) && !is_uncertain {
            return finding;
        }
        let level = Level::Warning;
        Finding { level, ..finding }
    });
    findings.collect()
}

fn words(path: PacketPath, bridge: &str) -> String {
    let name = |it| if it == Protocol::Tcp { "TCP" } else { "UDP" };
    match path {
        PacketPath::ToElsewhere(it) => {
            format!("from pods on {bridge} to other hosts ({})", name(it))
        }
        PacketPath::ToNode(it, port) => {
            let protocol = name(it);
            format!("from pods on {bridge} to port {port} of the node ({protocol})")
        }
        PacketPath::FromNode => format!("from the node to pods on {bridge}"),
        PacketPath::ToHostPort(port) => format!("from other hosts to hostPort {port}"),
    }
}

fn end(node: &Node, probe: &Probe, fate: &Fate, packets: &str) -> Finding {
    let bridge = &probe.bridge;
    match fate {
        Fate::Ended(ended) => {
            let verdict = match ended.verdict {
                EndVerdict::Drop => "dropped",
                EndVerdict::Queue => "queued to a program",
            };
            let by = match ended.place.handle {
                0 => "its policy".to_owned(),
                handle => format!("the rule with handle {handle}"),
            };
            let message = format!("{packets} {verdict} in {}, by {by}", ended.place);
            let is_covered = is_of_iptables(ended);
            let impact = if is_covered { COVERED } else { COPY };
            let finding = Finding::problem(SUBJECT, message).impact(impact);
            finding.fix(fix(node, bridge, ended))
        }
        Fate::Lost(Some(rule)) => {
            let program = rule.split(' ').next().unwrap_or_default();
            let finding = Finding::problem(SUBJECT, format!("{packets} dropped by {rule}"));
            if rule.contains("FORWARD") && rule.contains("-t filter:") {
                let fix = opened(program, &quoted(bridge));
                return finding.impact(COVERED).fix(fix);
            }
            finding.fix(format!("{program}-save -c"))
        }
        Fate::Lost(None) | Fate::Passed => {
            let message = format!("{packets} lost, and no rule was seen that drops them");
            let impact = "In a copy of all rules they are redirected, or a table that is not copied drops them.";
            let finding = Finding::problem(SUBJECT, message).impact(impact);
            finding.fix("nft list ruleset")
        }
    }
}

/// Returns whether the packets ended in a chain of iptables that `FORWARD` jumps to.
fn is_of_iptables(Ended { place, .. }: &Ended) -> bool {
    let is_filter = matches!(place.family(), "ip" | "ip6") && place.table == "filter";
    is_filter && place.chain.to_ascii_lowercase().contains("forward")
}

/// Returns the fix. If the packets ended in a base chain of the forward hook, the commands add
/// rules that accept packets of the bridge. For any other chain, the command lists the chain.
fn fix(node: &Node, bridge: &str, Ended { place, .. }: &Ended) -> String {
    let (family, bridge) = (place.family(), quoted(bridge));
    let mut chains = node.firewall.chains.iter().filter(|it| it.is_forward);
    let is_forward = chains
        .any(|it| (it.family.name(), &it.table, &it.name) == (family, &place.table, &place.chain));
    let [table, chain] = [&place.table, &place.chain].map(quoted);
    match family {
        "ip" if is_forward && chain == "FORWARD" => opened("iptables", &bridge),
        "ip6" if is_forward && chain == "FORWARD" => opened("ip6tables", &bridge),
        _ if is_forward => ["iifname", "oifname"]
            .map(|it| format!("nft insert rule {family} {table} {chain} {it} {bridge} accept"))
            .join("\n"),
        _ => format!("nft -a list chain {family} {table} {chain}"),
    }
}

fn opened(program: &str, bridge: &str) -> String {
    let accept = |flag| format!("{program} -I FORWARD {flag} {bridge} -j ACCEPT");
    ["-i", "-o"].map(accept).join("\n")
}

/// Finds live attachments that lack elements which their configuration requires.
fn taken_away(node: &Node) -> Option<Finding> {
    // Attachments of the reference have rules instead of elements, so they are not checked.
    let ours = node.alive().filter(|it| is_ours(node, it));
    let lacking: Vec<_> = ours.filter_map(|it| lacks(node, it)).collect();
    let message = format!("elements are missing: {}", some_of(&lacking));
    (!lacking.is_empty()).then(|| {
        let impact = "The rules were flushed: hostPorts are not forwarded, pods are not masqueraded, \
             their MACs are not checked, root in a pod can exceed its limit, and pods have no \
             permission to pass other firewalls.";
        let finding = Finding::problem(SUBJECT, message).impact(impact);
        finding.fix("cnitool reload")
    })
}

/// Returns whether a link or an element is tagged with the attachment.
pub fn is_ours(node: &Node, attached: &Attached) -> bool {
    let owner = attached.attachment.owner();
    let mut elements = node.firewall.elements.iter();
    let mut links = node.links.iter();
    elements.any(|it| it.owner == owner) || links.any(|it| it.alias.as_ref() == Some(&owner))
}

/// Returns the attachment's tag and the first table without an element of the attachment; `None` if
/// no element is missing.
fn lacks(node: &Node, attached: &Attached) -> Option<String> {
    let owner = attached.attachment.owner();
    let missing = tables(node, attached).into_iter().find(|table| {
        let mut elements = node.firewall.elements.iter();
        !elements.any(|it| it.table == *table && it.owner == owner)
    })?;
    Some(format!("{owner} in {missing}"))
}

/// Returns the tables that should have elements of the attachment.
pub fn tables(node: &Node, attached: &Attached) -> Vec<&'static str> {
    let network = attached.entry.network(&node.configuration.directory);
    let plugins = network.ok().flatten().map(|it| it.plugins);
    let mut wanted = Vec::new();
    for plugin in plugins.unwrap_or_default() {
        match plugin.program.as_str() {
            "bridge" => {
                wanted.extend(plugin.is_set("ipMasq").then_some(attach::MASQUERADE_TABLE));
                wanted.extend(plugin.is_set("macspoofchk").then_some(attach::FRAMES_TABLE));
            }
            "ptp" => wanted.extend(plugin.is_set("ipMasq").then_some(attach::MASQUERADE_TABLE)),
            "firewall" if !attached.addresses().is_empty() => wanted.push(firewall::TABLE),
            "portmap" if has_ports(attached, &plugin.capabilities) => wanted.push(portmap::TABLE),
            "bandwidth" if has_backstop(node, attached) => wanted.push(bandwidth::TABLE),
            _ => {}
        }
    }
    wanted
}

/// Returns whether the attachment's egress is limited, and the kernel supports the second limit,
/// which root in the pod cannot evade. On other kernels, ADD does not set that limit.
fn has_backstop(node: &Node, attached: &Attached) -> bool {
    let owner = attached.attachment.owner();
    let mut ifbs = node.links.iter().filter(|it| it.kind == LinkKind::Ifb);
    let mut lacks = node.lacks.iter();
    ifbs.any(|it| it.alias.as_ref() == Some(&owner))
        && !lacks.any(|it| it.need.consequence == Consequence::LimitsEvadable)
}

fn has_ports(attached: &Attached, declared: &[String]) -> bool {
    let asked = attached.entry.arguments.runtime_config(declared);
    let ports = asked.get("portMappings").and_then(Value::as_array);
    let addresses = attached.addresses();
    // portmap ignores a port if the pod has no address of the port's family.
    let is_served = |mapping: Mapping| {
        let mut addresses = addresses.iter();
        mapping.host == HostAddress::Any || addresses.any(|it| mapping.is_for(it.ip()))
    };
    let mut ports = ports.into_iter().flatten();
    ports.any(|it| Mapping::parse(it).map_or(true, is_served))
}

const COPY: &str = "They were sent through a copy of all rules.";

const COVERED: &str = "They were sent through a copy of all rules. The plugin `firewall` in the network's list lets pods pass this chain.";

const SUBJECT: &str = "firewall";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached_by, levels, node};
    use super::*;

    const LIST: &str = r#"{"name": "pods", "plugins": [{"type": "bridge", "isGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}]}"#;

    #[test]
    fn flushed_elements_are_reported() {
        let mut node = node(&[("pods.conflist", LIST)]);
        node.attached = vec![attached_by(LIST, "pods", "a")];
        // Without a tag, the attachment counts as one that the reference made.
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.links = vec![netlink::Link {
            alias: Some("cni:pods/a/eth0".to_owned()),
            ..netlink::Link::default()
        }];
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Problem]);
        assert_eq!(findings[0].fix, "cnitool reload");
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
            plugins: &["bandwidth"],
            keys: &[],
            consequence: Consequence::LimitsEvadable,
        };
        node.lacks = vec![node::Lack {
            reason: "operation not supported".to_owned(),
            need,
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }
}
