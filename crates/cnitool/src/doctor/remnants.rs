//! Checks for firewall rules that the Go plugins (containernetworking/plugins) left for attachments
//! that no longer exist.
//!
//! A rule belongs to an attachment if it contains one of the attachment's marks: a part of the
//! chain's name, a part of the rule's comment, or an address. `cnitool migrate` uses the same
//! marks.

use node::{Node, RuleComment};

use super::finding::Finding;
use crate::reference::{Living, Mark};

/// Reports in one finding whether chains and rules of the Go plugins are for live pods or stale.
/// Returns no finding if there are no such rules, or if no network of the node uses `bridge`,
/// `ptp`, `portmap` or `firewall` of this suite.
pub fn judge(node: &Node) -> Vec<Finding> {
    let is_ours = |name: &&str| node.configuration.has_ours(name);
    let marks = marks(node);
    if marks.is_empty() || !["bridge", "ptp", "portmap", "firewall"].iter().any(is_ours) {
        return Vec::new();
    }
    let living = Living::of(node);
    let gone: Vec<_> = marks.iter().filter(|it| !living.has(it)).collect();
    // A rule whose mark is an address is stale if no live sandbox has the address: the kernel lists
    // the addresses even of a sandbox whose attachment is unknown. A rule with another mark may be
    // for such a sandbox, so it is proven stale only if no such sandbox exists. If the addresses of
    // some sandbox cannot be read, no rule is proven stale.
    let is_readable = node.host_links.hidden().is_none();
    let is_proven =
        |it: &&&Mark| is_readable && (!living.has_unnamed() || matches!(it, Mark::Address(_)));
    let proven = gone.iter().filter(is_proven).count();
    let gone = gone.len();
    let what = "chains and rules of the Go plugins";
    vec![if gone == 0 {
        Finding::ok(format!("{what}: {}", marks.len())).impact(
            "Each is for a live pod. After the pods are deleted, `cnitool migrate --remove` removes them.",
        )
    } else if proven == 0 {
        Finding::ok(format!("{what} without known pod: {gone}"))
            .impact("Some live pods cannot be identified: see `cnitool migrate`.")
    } else {
        let impact = "They take precedence over this suite's rules: a port that one of them forwards \
             does not reach the next pod that has it, and the next pod with an address of \
             CNI-FORWARD passes the firewall.";
        Finding::warning(format!("{what} for deleted pods: {proven}"))
            .impact(impact)
            .fix("cnitool migrate\ncnitool migrate --remove")
    }]
}

/// Returns what identifies attachments in the rules of the Go plugins: parts of the names of chains
/// in the table `nat`, parts of the comments of rules in the plugins' own tables, and addresses
/// that `CNI-FORWARD` accepts.
fn marks(node: &Node) -> Vec<Mark> {
    let chains = node.firewall.chains.iter().filter(|it| it.table == "nat");
    let chains = chains.filter_map(|it| Mark::of_chain(&it.name));
    let mark = |it: &RuleComment| Mark::of_rule(it.table, &it.comment);
    let rules = node.firewall.rule_comments.iter().filter_map(mark);
    let admissions = node.firewall.admissions.iter();
    let addresses = admissions.map(|it| Mark::Address(*it));
    chains.chain(rules).chain(addresses).collect()
}

#[cfg(test)]
mod tests {
    use nft::{Family, HeldChain};
    use node::HostLink;

    use super::super::finding::Level;
    use super::super::tests::{attached, lease, levels, node};
    use super::*;
    use node::Program;

    /// Returns a node with the Go plugins' rules for the container `a` of the network `pods`, and
    /// with rules of other programs.
    fn with_remnants() -> Node {
        let mut node = node(&[]);
        let chain = |name: &str| HeldChain {
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
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
    }

    #[test]
    fn no_rule_is_stale_while_the_addresses_of_a_sandbox_are_unknown() {
        let mut node = with_remnants();
        let link = |addresses| HostLink {
            name: "veth0".to_owned(),
            master: None,
            owner: None,
            addresses,
        };
        node.host_links.0 = vec![link(Some([].into()))];
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
        node.host_links.0 = vec![link(None)];
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Ok]);
        let message = &findings[0].message;
        assert!(message.ends_with("without known pod: 2"), "{message}");
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
