//! Checks whether the node's firewall rules drop packets of pods, and whether a reload of the
//! firewall removed this suite's elements in sets and maps of `nf_tables`.

use std::collections::BTreeSet;

use node::{Condition, Node, Probe, TableState};

use super::dropped::{COPY, dropped};
use super::finding::{Finding, count, quoted, some_of};
use super::stages::{place, untried};

/// Reports packets of pods that the node's firewall rules would stop: doctor has sent test packets
/// through a copy of the rules. Also reports live attachments that lack elements in `nf_tables`,
/// and tables that another program changed.
pub fn judge(node: &Node) -> Vec<Finding> {
    let probes = node.probes.iter();
    let mut findings: Vec<_> = probes.flat_map(|probe| dropped(node, probe)).collect();
    findings.extend(node.probes.iter().find_map(left_out));
    findings.extend(taken_away(node));
    findings.extend(changed_tables(node));
    let mut places: Vec<_> = node.probes.iter().map(|it| place(&it.stage)).collect();
    places.dedup();
    if findings.is_empty() && !places.is_empty() {
        let message = format!("new packets of pods {} pass", some_of(places));
        findings.push(Finding::ok(message).impact(COPY));
    }
    let untried = untried(node);
    if !untried.is_empty() {
        let message = format!("no packet was tried of networks: {}", some_of(untried));
        let impact = "They have a VLAN or a gateway outside their subnet, or no address of a pod \
             is known before the first ADD.";
        findings.push(Finding::ok(message).impact(impact));
    }
    if findings.is_empty() {
        let message = "the node is no network's gateway, so no packet was tried";
        findings.push(Finding::ok(message));
    }
    findings
}

/// Reports rules that the copy of the node's rules lacks.
fn left_out(probe: &Probe) -> Option<Finding> {
    let left_out = &probe.trial.as_ref().ok()?.left_out;
    let places: BTreeSet<_> = left_out.iter().map(ToString::to_string).collect();
    let rules = count(left_out.len(), "rule");
    let message = format!(
        "packets of pods were tried without {rules} of {}",
        some_of(places)
    );
    let impact = "A copy of them is refused, for example because they match an ipset: it is unknown \
         whether they stop packets of pods.";
    let place = left_out.first()?;
    let [table, chain] = [&place.table, &place.chain].map(quoted);
    let fix = format!("nft -a list chain {} {table} {chain}", place.family());
    Some(Finding::warning(message).impact(impact).fix(fix))
}

/// Finds live attachments without elements in a table of `nf_tables`, if their configuration
/// requires elements there. Names only the first such table of each attachment.
fn taken_away(node: &Node) -> Option<Finding> {
    let lacking = node.traces().into_iter().filter_map(|(owner, traces)| {
        let tables = traces.lacking_tables(node);
        Some(format!("{owner} in {}", tables.first()?))
    });
    let lacking: Vec<_> = lacking.collect();
    let message = format!("elements are missing: {}", some_of(&lacking));
    (!lacking.is_empty()).then(|| {
        let impact = "The rules were flushed: hostPorts are not forwarded, pods are not masqueraded, \
             their MACs are not checked, root in a pod can exceed its limit, and pods have no \
             permission to pass other firewalls.";
        let finding = Finding::problem(message).impact(impact);
        finding.fix("cnitool reload")
    })
}

/// Finds tables of this suite whose rules another program changed and in which attachments have
/// elements. A changed table without elements affects no attachment, and the next ADD repairs it.
fn changed_tables(node: &Node) -> Option<Finding> {
    let is_changed = |it: &&TableState| it.condition == Condition::Damaged && it.elements > 0;
    let changed = node.tables.iter().filter(is_changed);
    let changed = changed.map(|it| format!("{} {}", it.family, it.name));
    let changed: Vec<_> = changed.collect();
    let message = format!(
        "another program changed nf_tables tables: {}",
        some_of(&changed)
    );
    (!changed.is_empty()).then(|| {
        let finding = Finding::problem(message);
        let finding = finding
            .impact("Their rules may forward, masquerade, drop or permit too little or too much.");
        finding.fix("cnitool reload")
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached_at, attached_by, levels, node};
    use super::*;

    const LIST: &str = r#"{"name": "pods", "plugins": [{"type": "bridge", "isGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}]}"#;

    #[test]
    fn flushed_elements_are_reported() {
        let mut node = node(&[("pods.conflist", LIST)]);
        node.attached = vec![attached_by(LIST, "pods", "a")];
        // An attachment without a tagged link and without elements counts as made by the Go
        // plugins, which add no elements.
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.links = vec![netlink::Link {
            alias: Some("cni:pods/a/eth0".to_owned()),
            ..netlink::Link::default()
        }];
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Problem]);
        assert_eq!(findings[0].fix, "cnitool reload");
        node.firewall.elements = vec![node::OwnedElement {
            table: "cni-masquerade",
            owner: "cni:pods/a/eth0".to_owned(),
            port: None,
            address: None,
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn changed_tables_are_reported_while_an_attachment_uses_them() {
        let mut node = node(&[("pods.conflist", LIST)]);
        for (condition, elements, level) in [
            (Condition::Damaged, 1, Level::Problem),
            (Condition::Damaged, 0, Level::Ok),
            (Condition::Complete, 1, Level::Ok),
        ] {
            let (family, name) = ("inet", "cni-portmap");
            node.tables = vec![TableState {
                family,
                name,
                condition,
                elements,
            }];
            assert_eq!(levels(&judge(&node)), [level], "{condition:?} {elements}");
        }
    }

    #[test]
    fn isolated_ports_and_promiscuous_bridges_need_elements_in_tables_of_frames() {
        for (key, table) in [
            (
                r#""type": "firewall", "ingressPolicy": "isolated""#,
                "cni-isolation",
            ),
            (r#""type": "bridge", "promiscMode": true"#, "cni-bridge"),
        ] {
            let list = format!(r#"{{"name": "pods", "plugins": [{{{key}}}]}}"#);
            let mut node = node(&[("pods.conflist", &list)]);
            let sysctl = "net.bridge.bridge-nf-call-iptables";
            node.sysctls.insert(sysctl.to_owned(), "1".to_owned());
            node.links = vec![super::super::tests::link(1, "cni0")];
            let attached = attached_at("10.1.0.2/16", &list, ["pods", "a"]);
            let tables = node.expected_tables(&attached);
            assert!(tables.contains(&table), "{key} {tables:?}");
        }
    }
}
