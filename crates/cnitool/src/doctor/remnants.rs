//! What the reference left in the firewall for attachments that are gone.
//!
//! Its chains and rules say whose they are, by what `migrate` goes by as well.

use node::{Node, RuleComment};

use super::finding::Finding;
use crate::reference::{Living, Mark};

/// Of all of them together, where plugins of this suite make and remove what is in the firewall.
pub fn judge(node: &Node) -> Vec<Finding> {
    let is_ours = |name: &&str| node.configuration.has_ours(name);
    let marks = marks(node);
    if marks.is_empty() || !["bridge", "portmap"].iter().any(is_ours) {
        return Vec::new();
    }
    let attached = node.attached.iter();
    let attached = attached.map(|it| (&it.attachment, it.is_alive));
    let living = Living::of(attached, &node.leases, &node.host_links);
    let gone = marks.iter().filter(|it| !living.has(it)).count();
    vec![match gone {
        0 => {
            let found = format!("chains and rules of the Go plugins: {}", marks.len());
            Finding::ok(SUBJECT, found).means(
                "Each is for a pod that lives. When these are gone, `cnitool migrate --remove` \
                 removes them.",
            )
        }
        gone if living.has_unnamed() => {
            let found = format!("chains and rules of the Go plugins without known pod: {gone}");
            Finding::ok(SUBJECT, found)
                .means("Pods live that only their addresses tell of: see `cnitool migrate`.")
        }
        gone => {
            let found =
                format!("chains and rules of the Go plugins for pods that are gone: {gone}");
            Finding::warning(SUBJECT, found)
                .means(
                    "They come before ours: a port that one of them forwards leads nowhere for \
                     the pod that has it next.",
                )
                .mend("cnitool migrate\ncnitool migrate --remove")
        }
    }]
}

/// Of the chains of iptables that are in `nf_tables`, and of the rules in tables of the reference's.
fn marks(node: &Node) -> Vec<Mark> {
    let chains = node.firewall.chains.iter().filter(|it| it.table == "nat");
    let chains = chains.filter_map(|it| Mark::of_chain(&it.name));
    let mark = |it: &RuleComment| Mark::of_rule(&it.table, &it.comment);
    let rules = node.firewall.rule_comments.iter().filter_map(mark);
    chains.chain(rules).collect()
}

const SUBJECT: &str = "remnant";

#[cfg(test)]
mod tests {
    use nft::{Family, HeldChain};

    use super::super::finding::Level;
    use super::super::tests::{attached, lease, levels, node};
    use super::*;
    use node::Program;

    /// With what the reference has for the container `a` of the network `pods`, and what others have.
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
        let remark = |table: &str, comment: &str| RuleComment {
            table: table.to_owned(),
            comment: comment.to_owned(),
        };
        node.firewall.rule_comments = vec![remark("cni_hostport", "a"), remark("filter", "b")];
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
    fn what_is_of_the_living_is_well_and_what_is_left_is_told() {
        let mut node = with_remnants();
        let findings = judge(&node);
        assert_eq!(levels(&findings), [Level::Warning]);
        assert!(findings[0].found.ends_with(": 2"), "{findings:?}");
        node.leases = vec![lease("pods", "10.1.0.2", "a")];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.attached = vec![attached("pods", "a")];
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.attached[0].is_alive = false;
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
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
