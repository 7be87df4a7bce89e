//! Chains of others that drop what is forwarded, and what of ours a reload took away.

use std::net::IpAddr;

use cni::json;
use ipnetwork::IpNetwork;
use nft::{Family, HeldChain, HeldRule, Verdict};
use serde_json::Value;

use super::finding::{Finding, quoted, some_of};
use super::range::pod_networks;
use crate::node::{Attached, Gate, Node};

/// Of each chain that forwarded packets enter, and of each attachment that has elements.
pub fn judge(node: &Node) -> Vec<Finding> {
    let gates = node.firewall.gates.iter();
    let mut findings: Vec<_> = gates.filter_map(|gate| closed(node, gate)).collect();
    findings.extend(taken_away(node));
    if findings.is_empty() {
        let found = match node.firewall.gates.len() {
            0 => "nobody filters what the node forwards".to_owned(),
            count => format!("{count} chains of others forward by default"),
        };
        findings.push(Finding::ok(SUBJECT, found));
    }
    findings.extend(legacy(node));
    findings
}

/// How the chain drops what no rule of its own lets pass.
fn drops(gate: &Gate) -> Option<&'static str> {
    let own = gate.rules.iter().filter(|it| it.chain == gate.chain.name);
    let mut for_all = own.filter(|it| it.is_unconditional);
    let last = for_all.find(|it| matches!(it.verdict, Some(Verdict::Accept | Verdict::Drop)));
    match last.and_then(|it| it.verdict) {
        Some(Verdict::Drop) => Some("by a rule for all that is left"),
        None if gate.chain.policy == Some(Verdict::Drop) => Some("by its policy"),
        _ => None,
    }
}

fn closed(node: &Node, gate: &Gate) -> Option<Finding> {
    let how = drops(gate)?;
    let HeldChain {
        family,
        table,
        name,
        ..
    } = &gate.chain;
    let family_name = family.name();
    let found = format!("table {family_name} {table}, chain {name} drops what is forwarded, {how}");
    let concerned = subjects(node, *family);
    let barred: Vec<_> = concerned.iter().filter(|it| !it.pass(gate)).collect();
    if !barred.is_empty() {
        let mend: Vec<_> = barred.iter().map(|it| it.mend(gate)).collect();
        return Some(bars(gate, found).mend(mend.join("\n")));
    }
    let names: Vec<_> = concerned.iter().map(|it| it.bridge.clone()).collect();
    Some(Finding::ok(SUBJECT, found).means(match names.as_slice() {
        [] => "No bridge of a network is concerned.".to_owned(),
        names => format!("Rules let pass what is for {}.", some_of(names)),
    }))
}

/// Nothing that is understood lets the pods pass.
fn bars(gate: &Gate, found: String) -> Finding {
    if gate.rules.iter().any(|it| it.looks_up) {
        return Finding::warning(SUBJECT, found).means(
            "No rule names the pods. Some look in sets, which are not followed here: pods may \
             reach nothing beyond the node, and hostPorts lead nowhere.",
        );
    }
    let means = "Pods reach nothing beyond the node, and hostPorts lead nowhere.";
    Finding::problem(SUBJECT, found).means(means)
}

/// What has to be let pass.
struct Subject {
    bridge: String,
    networks: Vec<IpNetwork>,
}

impl Subject {
    /// Some rule lets it pass.
    fn pass(&self, gate: &Gate) -> bool {
        let lets = |it: &&HeldRule| matches!(it.verdict, Some(Verdict::Accept | Verdict::Chain));
        gate.rules.iter().filter(lets).any(|rule| {
            let mut networks = self.networks.iter();
            rule.is_for_link(&self.bridge) || networks.any(|it| rule.is_for_network(*it))
        })
    }

    fn mend(&self, gate: &Gate) -> String {
        let (family, bridge) = (gate.chain.family, quoted(&self.bridge));
        let [table, chain] = [&gate.chain.table, &gate.chain.name].map(quoted);
        let program = match family {
            Family::Ipv4 if chain == "FORWARD" => Some("iptables"),
            Family::Ipv6 if chain == "FORWARD" => Some("ip6tables"),
            _ => None,
        };
        if let Some(program) = program {
            return format!(
                "{program} -I {chain} -i {bridge} -j ACCEPT\n{program} -I {chain} -o {bridge} -j ACCEPT"
            );
        }
        let family = family.name();
        format!(
            "nft insert rule {family} {table} {chain} iifname {bridge} accept\n\
             nft insert rule {family} {table} {chain} oifname {bridge} accept"
        )
    }
}

/// The bridges of networks that the node routes for, with their ranges of this family.
fn subjects(node: &Node, family: Family) -> Vec<Subject> {
    let sources = node.configuration.sources();
    let is_of = |network: &IpNetwork| match family {
        Family::Ipv4 => network.is_ipv4(),
        Family::Ipv6 => network.is_ipv6(),
        _ => true,
    };
    let subjects = sources.filter_map(|source| {
        let networks = pod_networks(node, source).into_iter();
        let networks: Vec<_> = networks.filter(is_of).collect();
        let bridge = source.bridge()?.to_owned();
        (source.is_gateway() && !networks.is_empty()).then_some(Subject { bridge, networks })
    });
    let mut subjects: Vec<_> = subjects.collect();
    subjects.sort_by(|a, b| a.bridge.cmp(&b.bridge));
    subjects.dedup_by(|a, b| a.bridge == b.bridge);
    subjects
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
                 addresses, nobody checks their MACs.",
            )
            .mend("cnitool reload")
    })
}

/// Something of it bears its owner as ours does.
fn is_ours(node: &Node, attached: &Attached) -> bool {
    let owner = attached.attachment.owner();
    let mut elements = node.firewall.elements.iter();
    let mut links = node.links.iter();
    elements.any(|it| it.owner == owner) || links.any(|it| it.alias.as_ref() == Some(&owner))
}

/// The attachment, and the first table that it should have an element in and has not.
fn lacks(node: &Node, attached: &Attached) -> Option<String> {
    let owner = attached.attachment.owner();
    let network = attached
        .entry
        .network(&node.configuration.directory)
        .ok()??;
    let mut wanted = Vec::new();
    for plugin in &network.plugins {
        let is_set = |key| {
            let value = json::value(&plugin.config, key);
            value.and_then(Value::as_bool) == Some(true)
        };
        match plugin.program.as_str() {
            "bridge" => {
                wanted.extend(is_set("ipMasq").then_some("cni-masquerade"));
                wanted.extend(is_set("macspoofchk").then_some("cni-bridge"));
            }
            "portmap" if has_ports(attached, &plugin.capabilities) => wanted.push("cni-portmap"),
            _ => {}
        }
    }
    let has = |table: &&str| {
        let mut elements = node.firewall.elements.iter();
        elements.any(|it| it.table == *table && it.owner == owner)
    };
    let missing = wanted.iter().find(|table| !has(table))?;
    Some(format!("{owner} in {missing}"))
}

fn has_ports(attached: &Attached, declared: &[String]) -> bool {
    let asked = attached.entry.arguments().runtime_config(declared);
    let ports = asked.get("portMappings").and_then(Value::as_array);
    let addresses = attached.addresses();
    // A port of the host's address of a family that the pod has no address of is left out.
    let is_served = |mapping: &Value| {
        let host = json::value(mapping.as_object()?, "hostIP")?.as_str()?;
        let host: IpAddr = host.parse().ok()?;
        Some(addresses.iter().any(|it| it.is_ipv4() == host.is_ipv4()))
    };
    let mut ports = ports.into_iter().flatten();
    ports.any(|it| is_served(it).unwrap_or(true))
}

/// Tables of iptables beside `nf_tables`, whose rules packets pass too.
fn legacy(node: &Node) -> Option<Finding> {
    let tables = &node.firewall.legacy;
    tables.iter().any(|it| it == "filter").then(|| {
        Finding::warning(SUBJECT, "legacy iptables has a filter table of its own")
            .means("Its rules are not read here. Packets pass them beside those of nf_tables.")
            .mend("iptables-legacy -S FORWARD")
    })
}

const SUBJECT: &str = "firewall";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached_by, levels, node};
    use super::*;

    const LIST: &str = r#"{"name": "pods", "plugins": [{"type": "bridge", "isGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}]}"#;

    fn judged(family: Family, policy: Verdict) -> Vec<Finding> {
        let mut node = node(&[("pods.conflist", LIST)]);
        let chain = HeldChain {
            family,
            table: "filter".to_owned(),
            name: "FORWARD".to_owned(),
            is_forward: true,
            policy: Some(policy),
        };
        let rules = Vec::new();
        node.firewall.gates = vec![Gate { chain, rules }];
        judge(&node)
    }

    #[test]
    fn chains_that_drop_are_told_with_what_lets_pods_pass() {
        let findings = judged(Family::Ipv4, Verdict::Drop);
        assert_eq!(levels(&findings), [Level::Problem]);
        assert_eq!(
            findings[0].found,
            "table ip filter, chain FORWARD drops what is forwarded, by its policy"
        );
        assert!(
            findings[0]
                .mend
                .starts_with("iptables -I FORWARD -i cni0 -j ACCEPT\n")
        );
        let mend = &judged(Family::Inet, Verdict::Drop)[0].mend;
        assert!(mend.starts_with("nft insert rule inet filter FORWARD iifname cni0 accept"));
    }

    #[test]
    fn chains_that_pass_or_see_no_pods_are_well() {
        assert_eq!(levels(&judged(Family::Ipv4, Verdict::Accept)), [Level::Ok]);
        assert_eq!(levels(&judged(Family::Ipv6, Verdict::Drop)), [Level::Ok]);
        assert_eq!(levels(&judge(&node(&[]))), [Level::Ok]);
    }

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
        node.firewall.elements = vec![crate::node::Held {
            table: "cni-masquerade",
            owner: "cni:pods/a/eth0".to_owned(),
            port: None,
            address: None,
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn legacy_tables_are_told() {
        let mut node = node(&[]);
        node.firewall.legacy = vec!["nat".to_owned()];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.firewall.legacy.push("filter".to_owned());
        assert_eq!(levels(&judge(&node)), [Level::Ok, Level::Warning]);
    }
}
