//! Checks for firewall rules that the Go plugins (containernetworking/plugins) left for attachments
//! that no longer exist.
//!
//! A rule belongs to an attachment if it contains one of the attachment's marks: a part of the
//! chain's name, a part of the rule's comment, or an address. `cnitool migrate` uses the same
//! marks.

use std::collections::BTreeSet;
use std::fmt::Display;

use node::{Node, PLUGINS, RuleComment};
use upkeep::Liveness;

use super::finding::Finding;
use crate::reference::{LiveAttachments, Mark};

/// Reports whether chains and rules of the Go plugins are for live pods, for pods that may be live,
/// or stale. Returns no finding if there are no such rules, or if no network of the node uses a
/// plugin of this suite in place of one that made them.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut replacing = PLUGINS.iter().filter(|it| it.replaces_rules);
    let marks = marks(node);
    if marks.is_empty() || !replacing.any(|it| node.configuration.has_ours(it.name)) {
        return Vec::new();
    }
    let attachments = match LiveAttachments::of(node) {
        Ok(attachments) => attachments,
        Err(reason) => return vec![unproven(marks.len(), reason)],
    };
    let (mut gone, mut reasons) = (0, Vec::new());
    for mark in &marks {
        match attachments.liveness(mark, &BTreeSet::new()) {
            Liveness::Live | Liveness::Young => {}
            Liveness::Unproven(reason) => reasons.push(reason.to_string()),
            // The kernel lists the addresses even of a sandbox whose attachment is unknown. So only
            // a rule whose mark is an address is proven not to be for such a sandbox.
            Liveness::Gone if attachments.has_unnamed() && !matches!(mark, Mark::Address(_)) => {
                reasons.push("some live pods cannot be identified".to_owned());
            }
            Liveness::Gone => gone += 1,
        }
    }
    let unproven_marks = reasons.first().map(|it| unproven(reasons.len(), it));
    let stale = (gone > 0).then(|| stale(gone));
    let findings: Vec<_> = stale.into_iter().chain(unproven_marks).collect();
    if findings.is_empty() {
        return vec![live(marks.len())];
    }
    findings
}

fn live(count: usize) -> Finding {
    let impact = "Each is for a live pod. After the pods are deleted, `cnitool migrate --remove` \
         removes them.";
    Finding::ok(format!("{WHAT}: {count}")).impact(impact)
}

/// Returns the finding for chains and rules that are neither for known live pods nor proven to be
/// stale, with the reason.
fn unproven(count: usize, reason: impl Display) -> Finding {
    Finding::ok(format!("{WHAT} for pods that may be live: {count}"))
        .impact(format!("`cnitool migrate --remove` keeps them: {reason}."))
}

fn stale(count: usize) -> Finding {
    let impact = "They take precedence over this suite's rules: a port that one of them forwards does \
         not reach the next pod that has it, and the next pod with an address of CNI-FORWARD passes \
         the firewall.";
    Finding::warning(format!("{WHAT} for deleted pods: {count}"))
        .impact(impact)
        .fix("cnitool migrate\ncnitool migrate --remove")
}

const WHAT: &str = "chains and rules of the Go plugins";

/// Returns what identifies attachments in the rules of the Go plugins: parts of the names of chains
/// in the table `nat`, parts of the comments of rules in the plugins' own tables, and addresses
/// that `CNI-FORWARD` accepts.
fn marks(node: &Node) -> Vec<Mark> {
    let chains = node.firewall.chains.iter().filter(|it| it.table == "nat");
    let chains = chains.filter_map(|it| Mark::of_chain(&it.name));
    let mark = |it: &RuleComment| Mark::of_rule(it.table, &it.comment);
    let rules = node.firewall.rule_comments.iter().filter_map(mark);
    let accepted_addresses = node.firewall.accepted_addresses.iter();
    let addresses = accepted_addresses.map(|it| Mark::Address(*it));
    chains.chain(rules).chain(addresses).collect()
}

#[cfg(test)]
mod tests {
    use netlink::LinkKind;
    use nft::{Family, KernelChain};
    use node::HostLink;

    use super::super::finding::Level;
    use super::super::tests::{attached, lease, levels, link, node};
    use super::*;
    use node::Program;

    /// Returns a node with the Go plugins' rules for the container `a` of the network `pods`, and
    /// with rules of other programs.
    fn with_remnants() -> Node {
        let list = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
        let mut node = node(&[("pods.conflist", list)]);
        let chain = |name: &str| KernelChain {
            family: Family::Ipv4,
            table: "nat".to_owned(),
            name: name.to_owned(),
            is_forward: false,
        };
        let names = [
            "CNI-HOSTPORT-DNAT",
            "CNI-MINE",
            "CNI-DN-64e2b30124778559e7bbb",
        ];
        node.firewall.chains = names.map(chain).into();
        let comment_of = |table, comment: &str| RuleComment {
            table,
            comment: comment.to_owned(),
        };
        node.firewall.rule_comments =
            vec![comment_of("cni_hostport", "a"), comment_of("filter", "b")];
        let program = |is_ours| Program::Found {
            path: "/opt/cni/bin/portmap".into(),
            versions: None,
            is_ours,
        };
        let programs = &mut node.configuration.programs;
        programs.insert("bridge".to_owned(), program(false));
        programs.insert("portmap".to_owned(), program(true));
        node
    }

    #[test]
    fn rules_of_live_pods_are_ok_and_others_are_reported() {
        let mut node = with_remnants();
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert!(findings[0].message.ends_with(": 2"), "{findings:?}");
        node.leases = vec![lease("pods", "10.1.0.2", "a")];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.attached = vec![attached("pods", "a")];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.attached[0].is_alive = false;
        node.leases.clear();
        let mut bridge = link(3, "cni0");
        bridge.kind = LinkKind::Bridge;
        node.links = vec![bridge];
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
    }

    #[test]
    fn rules_of_pods_that_may_be_live_have_no_fix() {
        let mut node = with_remnants();
        node.attached = vec![attached("pods", "a")];
        node.attached[0].is_alive = false;
        let [finding] = <[Finding; 1]>::try_from(judge(&node)).unwrap();
        assert_eq!((finding.level, &*finding.fix), (Level::Ok, ""));
        assert!(
            finding.impact.contains("neither bridge cni0"),
            "{finding:?}"
        );
        // A stale rule beside them still has its fix.
        node.firewall.rule_comments[0].comment = "gone".to_owned();
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning, Level::Ok]);
        assert!(
            findings[0].message.ends_with("for deleted pods: 1"),
            "{findings:?}"
        );
    }

    #[test]
    fn no_rule_is_stale_while_a_file_in_the_cache_is_invalid() {
        let mut node = with_remnants();
        node.invalid_entries = 1;
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn no_rule_is_stale_beside_a_pod_whose_tag_has_hashes() {
        let mut node = with_remnants();
        assert_ne!(levels(&judge(&node)), [Level::Ok]);
        let mut attachment = attached("pods", "a").attachment;
        attachment.network = "n".repeat(150).parse().unwrap();
        node.host_links.0 = vec![HostLink {
            link: link(1, "veth0"),
            owner: Some(attachment.owner()),
            addresses: Some(["10.8.0.5".parse().unwrap()].into()),
        }];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
    }

    #[test]
    fn no_rule_is_stale_while_the_addresses_of_a_sandbox_are_unknown() {
        let mut node = with_remnants();
        let link = |addresses| HostLink {
            link: link(1, "veth0"),
            owner: None,
            addresses,
        };
        for addresses in [None, Some([].into())] {
            node.host_links.0 = vec![link(addresses)];
            let findings = judge(&node);
            assert_eq!(levels(&findings), [Level::Ok]);
            let message = &findings[0].message;
            assert!(message.ends_with("may be live: 2"), "{message}");
        }
    }

    #[test]
    fn nothing_is_said_where_the_reference_serves_or_left_nothing() {
        let mut node = with_remnants();
        node.configuration.programs.remove("portmap");
        assert_eq!(judge(&node), []);
        let mut node = with_remnants();
        node.firewall.chains.truncate(2);
        node.firewall.rule_comments.remove(0);
        assert_eq!(judge(&node), []);
    }
}
