//! Checks whether neighbours of the node reach services that listen only on its 127.0.0.1
//! (CVE-2020-8558).
//!
//! Neighbours on a link can reach these services if `route_localnet` of the link is 1. portmap sets
//! this sysctl, so that the node's own processes reach hostPorts at 127.0.0.1. portmap then adds
//! firewall rules and `IPsec` policies that drop packets of neighbours from and to 127.0.0.0/8.
//! cni-agent has a table of its own in the place of the policies. Each of the three suffices. The
//! check does not judge firewall rules of other programs.

use netlink::{Link, LinkKind};
use netns::Sysctl;
use node::{Attached, Node, REFERENCE_PORTMAP};

use super::finding::{Finding, quoted, some_of};

/// Reports whether rules or `IPsec` policies keep neighbours off 127.0.0.0/8, if `route_localnet`
/// of a link is 1. Checks all such links together, because portmap's rules and policies cover all
/// links.
pub fn judge(node: &Node) -> Vec<Finding> {
    let links = node.links.iter().filter(|it| it.routes_localnet);
    let links = links.filter(|it| it.kind != LinkKind::Loopback);
    let (ours, others): (Vec<_>, Vec<_>) = links.partition(|it| is_for_ports(node, it));
    let [ours, mut others] =
        [ours, others].map(|links| links.iter().map(|it| it.name.as_str()).collect::<Vec<_>>());
    let is_everywhere = node.sysctl(&key("all")) == Some("1");
    others.extend(is_everywhere.then_some("all"));
    if ours.is_empty() && others.is_empty() {
        return Vec::new();
    }
    let keys = some_of(ours.iter().chain(&others).map(|it| key(it)));
    let message = format!("{keys} is 1");
    let accepted = node.localnet.accepted.as_deref();
    let has_rules = node.firewall.guards_localnet;
    vec![match accepted {
        Some([]) => Finding::ok(message).impact("IPsec policies keep neighbours off 127.0.0.0/8."),
        _ if node.localnet.is_guarded => Finding::ok(message)
            .impact("cni-agent keeps neighbours off 127.0.0.0/8, also after `nft flush ruleset`."),
        Some(accepted) if has_rules && !ours.is_empty() && node.localnet.needs_policies => {
            let message = format!("no IPsec policy blocks {}", some_of(accepted));
            only_rules(message, &ours).fix(fix(node))
        }
        _ if has_rules => Finding::ok(message)
            .impact("Rules of portmap keep neighbours off 127.0.0.0/8, until `nft flush ruleset`."),
        _ if ours.is_empty() => by_another(node, message, &others),
        _ => open(&message, &ours).fix(fix(node)),
    }]
}

fn only_rules(message: String, links: &[&str]) -> Finding {
    let impact = format!(
        "Only rules keep pods on {} off 127.0.0.0/8 of the node. After `nft flush ruleset` they \
         reach services that listen only on 127.0.0.1 (CVE-2020-8558).",
        some_of(links)
    );
    Finding::warning(message).impact(impact)
}

fn open(message: &str, links: &[&str]) -> Finding {
    let missing = "portmap's rules and IPsec policies for 127.0.0.0/8 are missing";
    let impact = format!(
        "A pod on {} reaches services that listen only on 127.0.0.1 of the node (CVE-2020-8558), \
         unless rules of other programs drop its packets.",
        some_of(links)
    );
    Finding::problem(format!("{message}, and {missing}")).impact(impact)
}

/// Returns commands that restore the protection of 127.0.0.0/8. If this suite made a live
/// attachment with hostPorts, the command is `cnitool reload`, which restores portmap's rules and
/// `IPsec` policies. Otherwise, the commands add the policies.
fn fix(node: &Node) -> String {
    let mut attached = node.attached.iter();
    if attached.any(|it| node.is_ours(it) && has_ports(node, it)) {
        return "cnitool reload".to_owned();
    }
    ["dst", "src"]
        .map(|side| format!("ip xfrm policy update dir in {side} 127.0.0.0/8 action block"))
        .join("\n")
}

/// Reports links whose `route_localnet` another program set. This is no fault if the chain
/// KUBE-FIREWALL exists: kube-proxy sets the sysctl, and the chain drops packets of neighbours.
fn by_another(node: &Node, message: String, names: &[&str]) -> Finding {
    if node.firewall.has_chain(KUBE_FIREWALL) {
        let impact = "kube-proxy sets it for NodePorts on 127.0.0.1, and its chain KUBE-FIREWALL drops packets of \
                     neighbours.";
        return Finding::ok(message).impact(impact);
    }
    let finding = Finding::warning(message);
    let impact = "Neighbours on the link reach services that listen only on 127.0.0.1 of the node \
                 (CVE-2020-8558), unless rules of other programs drop their packets.";
    if has_ports_of_reference(node) {
        return finding.impact(format!(
            "{impact} The Go plugin portmap sets it, and ports of its pods need it."
        ));
    }
    let settings = names.iter().map(|it| quoted(&format!("{}=0", key(it))));
    let settings: Vec<_> = settings.collect();
    finding
        .impact(format!(
            "{impact} No known pod needs it: the Go plugin portmap left it, or kube-proxy, another \
             program or an administrator set it."
        ))
        .fix(format!("sysctl -w {}", settings.join(" ")))
}

/// Returns whether portmap needs `route_localnet` of the link. Either portmap has stored on disk
/// that it set the sysctl, or a live attachment of this suite with hostPorts is behind the link.
/// portmap stores nothing if another program has set the sysctl, but such an attachment needs it.
fn is_for_ports(node: &Node, link: &Link) -> bool {
    let is_behind = |attached: &Attached| {
        let links = attached.entry.host_links();
        let mut links = links.iter().filter_map(|name| node.link_called(name));
        links.any(|it| it.index == link.index || it.master == Some(link.index))
    };
    let mut ours = node.attached.iter().filter(|it| node.is_ours(it));
    node.localnet.links.contains(&link.index) || ours.any(|it| has_ports(node, it) && is_behind(it))
}

/// Returns whether the Go plugin `portmap` may forward ports on this node: it has a chain in
/// iptables, it has rules in its table of `nf_tables`, or a live pod has hostPorts. The pod counts
/// because the Go plugin may have attached it.
fn has_ports_of_reference(node: &Node) -> bool {
    let mut chains = node.firewall.chains.iter();
    let mut rule_comments = node.firewall.rule_comments.iter();
    chains.any(|it| it.name.starts_with("CNI-DN-"))
        || rule_comments.any(|it| it.table == REFERENCE_PORTMAP)
        || node.attached.iter().any(|it| has_ports(node, it))
}

fn has_ports(node: &Node, attached: &Attached) -> bool {
    attached.is_alive && node.expected_tables(attached).contains(&portmap::TABLE)
}

fn key(link: &str) -> String {
    Sysctl::ipv4(link, "route_localnet").key()
}

const KUBE_FIREWALL: &str = "KUBE-FIREWALL";

#[cfg(test)]
mod tests {
    use ipnetwork::IpNetwork;
    use netlink::Packets;
    use nft::{Family, KernelChain};

    use super::super::finding::Level;
    use super::super::tests::{levels, link, node};
    use super::*;

    /// Returns a node with a bridge whose `route_localnet` is 1, without portmap's firewall rules
    /// and `IPsec` policies. portmap set the sysctl if `is_ours`, otherwise another program did.
    fn unguarded(is_ours: bool) -> Node {
        let mut node = node(&[]);
        let mut bridge = link(3, "cni0");
        bridge.routes_localnet = true;
        node.links = vec![link(2, "eth0"), bridge];
        node.localnet.links.extend(is_ours.then_some(3));
        let localnet: IpNetwork = "127.0.0.0/8".parse().unwrap();
        node.localnet.accepted = Some(vec![Packets::To(localnet), Packets::From(localnet)]);
        node.localnet.needs_policies = true;
        node
    }

    fn judged(change: impl Fn(&mut Node)) -> [Vec<Level>; 2] {
        [true, false].map(|is_ours| {
            let mut node = unguarded(is_ours);
            change(&mut node);
            levels(&judge(&node))
        })
    }

    #[test]
    fn each_guard_suffices_and_the_policies_outlive_the_rules() {
        use Level::{Ok, Problem, Warning};
        let ruled = |node: &mut Node| node.firewall.guards_localnet = true;
        assert_eq!(judged(|_| {}), [[Problem], [Warning]]);
        assert_eq!(judged(ruled), [[Warning], [Ok]]);
        assert_eq!(
            judged(|it| it.localnet.accepted = Some(Vec::new())),
            [[Ok], [Ok]]
        );
        assert_eq!(judged(|it| it.localnet.is_guarded = true), [[Ok], [Ok]]);
        let alone = |node: &mut Node| node.localnet.needs_policies = false;
        assert_eq!(judged(alone), [[Problem], [Warning]]);
        assert_eq!(judged(|it| (alone(it), ruled(it)).0), [[Ok], [Ok]]);
        // The kernel does not support `IPsec` policies.
        let without = |node: &mut Node| node.localnet.accepted = None;
        assert_eq!(judged(without), [[Problem], [Warning]]);
        assert_eq!(judged(|it| (without(it), ruled(it)).0), [[Ok], [Ok]]);
    }

    #[test]
    fn what_another_set_is_no_fault_of_a_node_with_kube_proxy() {
        let mut node = unguarded(false);
        let all = "net.ipv4.conf.all.route_localnet";
        node.sysctls.insert(all.to_owned(), "1".to_owned());
        let fix = format!("sysctl -w net.ipv4.conf.cni0.route_localnet=0 {all}=0");
        assert_eq!(judge(&node)[0].fix, fix);
        node.firewall.chains.push(KernelChain {
            family: Family::Ipv4,
            table: "filter".to_owned(),
            name: KUBE_FIREWALL.to_owned(),
            is_forward: false,
        });
        assert_eq!(levels(&judge(&node)), [Level::Ok]);
        node.links.clear();
        node.sysctls.clear();
        assert_eq!(judge(&node), []);
    }
}
