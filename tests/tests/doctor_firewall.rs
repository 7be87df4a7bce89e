//! cnitool doctor: effects of the node's rules on packets of pods. Each finding is compared with a
//! real pod's traffic.

use tests::traffic::{tcp, udp};
use tests::{Findings, Host, Place as _, Sandbox, Tool, at_once};

/// A node with a pod, another host, and these rules: commands of nft(8), or lines for a shell.
struct Node<'h> {
    outside: Sandbox,
    pod: Sandbox,
    tool: Tool<'h>,
}

impl<'h> Node<'h> {
    fn new(host: &'h Host, rules: &[&str]) -> Self {
        let outside = host.outside();
        let pod = host.sandbox("a");
        let tool = host.pods();
        tool.add("pods", &pod, &["8080:80"]);
        for rule in rules {
            match rule.strip_prefix("sh ") {
                Some(line) => host.run("sh", &["-c", line]),
                None => host.run("nft", &[rule]),
            };
        }
        Self { outside, pod, tool }
    }

    fn reaches_others(&self) -> bool {
        tcp(&self.pod, &self.outside, "192.0.2.2").is_some()
    }

    /// Checks that the pod reaches no other host, and returns doctor's findings about that.
    #[track_caller]
    fn is_closed(&self, words: &[&str]) -> Findings {
        assert!(!self.reaches_others(), "{words:?}");
        let findings = self.tool.doctor();
        let mut all = vec!["from pods on cni1 to other hosts (TCP)"];
        all.extend(words);
        findings.expect("problem", "firewall", &all);
        findings
    }

    #[track_caller]
    fn is_open(&self) {
        assert!(self.reaches_others());
        let findings = self.tool.doctor();
        assert_eq!(findings.status, 0, "{findings:#?}");
        findings.expect("ok", "firewall", &["new packets of pods on cni1 pass"]);
    }
}

const FORWARD: &str = "add chain inet guard gate { type filter hook forward priority 0 ; }";
const CLOSED: &str =
    "add chain inet guard gate { type filter hook forward priority 0 ; policy drop ; }";
const TABLE: &str = "add table inet guard";

#[test]
fn forward_chain_that_drops_is_reported_and_opened() {
    let all = [
        (
            &["sh iptables-nft -P FORWARD DROP"][..],
            "table ip filter, chain FORWARD, by its policy",
        ),
        (
            &["sh iptables-legacy -P FORWARD DROP"],
            "iptables-legacy -t filter: :FORWARD DROP",
        ),
        (
            &[TABLE, CLOSED],
            "table inet guard, chain gate, by its policy",
        ),
    ];
    at_once(&all, |(rules, place)| {
        let host = Host::new();
        let node = Node::new(&host, rules);
        let findings = node.is_closed(&[place, "hostPort 8080"]);
        for command in findings.fixes("firewall") {
            node.tool.obey(&command);
        }
        node.is_open();
    });
}

#[test]
fn rules_that_let_only_answers_pass_do_not_open_a_chain() {
    let all = [
        &[
            TABLE,
            CLOSED,
            "add rule inet guard gate ct state established,related accept",
        ][..],
        &[
            "sh iptables-nft -P FORWARD DROP",
            "sh iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        ],
        &[
            "sh iptables-legacy -P FORWARD DROP",
            "sh iptables-legacy -A FORWARD -m state --state ESTABLISHED -j ACCEPT",
        ],
        // No rule leads to the accepting chain.
        &[
            TABLE,
            CLOSED,
            "add chain inet guard pods",
            "add rule inet guard pods iifname cni1 accept",
        ],
    ];
    at_once(&all, |rules| {
        let host = Host::new();
        Node::new(&host, rules).is_closed(&["by its policy"][..rules.len() % 2]);
    });
}

const ANSWERS: &str = "add rule inet guard gate ct state established,related accept";
const PORTS: &str = "add rule inet guard gate ct status dnat accept";

#[track_caller]
fn are_open(all: &[&[&str]]) {
    at_once(all, |rules| Node::new(&Host::new(), rules).is_open());
}

#[test]
fn rules_that_let_pods_pass_are_no_problem() {
    are_open(&[
        &[
            TABLE,
            CLOSED,
            ANSWERS,
            PORTS,
            "add rule inet guard gate ip saddr 10.0.0.0/8 accept",
            "add rule inet guard gate ip6 saddr fd00::/8 accept",
        ][..],
        &[
            TABLE,
            CLOSED,
            ANSWERS,
            PORTS,
            "add rule inet guard gate oifname uplink accept",
        ],
        &[
            TABLE,
            CLOSED,
            ANSWERS,
            PORTS,
            "add rule inet guard gate oif uplink accept",
        ],
    ]);
}

#[test]
fn sets_and_chains_that_let_pods_pass_are_no_problem() {
    are_open(&[
        &[
            TABLE,
            CLOSED,
            ANSWERS,
            PORTS,
            "add chain inet guard pods",
            "add rule inet guard pods accept",
            "add map inet guard links { type ifname : verdict ; }",
            "add element inet guard links { cni1 : jump pods }",
            "add rule inet guard gate iifname vmap @links",
        ][..],
        &[
            TABLE,
            CLOSED,
            ANSWERS,
            PORTS,
            "add set inet guard pods { type ipv4_addr ; flags interval ; }",
            "add element inet guard pods { 10.1.0.0-10.1.0.77, 10.1.0.128/25 }",
            "add rule inet guard gate ip saddr @pods accept",
            "add rule inet guard gate meta nfproto ipv6 iifname { cni1, cni2 } accept",
        ],
    ]);
}

#[test]
fn rules_that_concern_no_pods_are_no_problem() {
    are_open(&[
        // Rules of kube-proxy.
        &[
            "sh iptables-nft -N KUBE-FORWARD",
            "sh iptables-nft -A FORWARD -m comment --comment 'kubernetes rules' -j KUBE-FORWARD",
            "sh iptables-nft -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
            "sh iptables-nft -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
            "sh iptables-nft -A FORWARD -p tcp -m multiport --dports 1:2 -j DROP",
            "sh iptables-nft -t nat -A POSTROUTING -m addrtype --dst-type LOCAL -j RETURN",
        ],
        &[
            TABLE,
            FORWARD,
            "add counter inet guard c",
            "add quota inet guard q { over 9000 mbytes }",
            "add rule inet guard gate counter name c limit rate over 1000000/second drop",
            "add rule inet guard gate quota name q drop",
            "add rule inet guard gate tcp dport vmap { 25 : drop, 26-29 : drop }",
        ],
        &["sh iptables-legacy -A FORWARD -i other -j DROP"],
    ]);
}

#[track_caller]
fn are_closed(all: &[(&[&str], &str)]) {
    at_once(all, |(rules, words)| {
        Node::new(&Host::new(), rules).is_closed(&[words]);
    });
}

#[test]
fn rules_that_drop_what_is_forwarded_are_named() {
    let chain = "add chain inet guard other";
    let jump = "add rule inet guard gate iifname cni1 jump other";
    are_closed(&[
        (
            &[
                TABLE,
                FORWARD,
                chain,
                jump,
                "add rule inet guard other meta l4proto tcp drop",
            ][..],
            "table inet guard, chain other, by the rule with handle ",
        ),
        (
            &[TABLE, FORWARD, "add rule inet guard gate reject"],
            "table inet guard, chain gate, by the rule with handle ",
        ),
    ]);
}

#[test]
fn rules_that_drop_before_or_after_are_named() {
    are_closed(&[
        (
            &[
                TABLE,
                "add chain inet guard pre { type filter hook prerouting priority raw ; }",
                "add rule inet guard pre iifname cni1 drop",
            ],
            "table inet guard, chain pre, by the rule",
        ),
        (
            &["sh iptables-nft -t mangle -A POSTROUTING -o uplink -j DROP"],
            "table ip mangle, chain POSTROUTING, by the rule",
        ),
    ]);
}

#[test]
fn rules_of_bridges_links_and_legacy_iptables_are_named() {
    are_closed(&[
        (
            &[
                "add table bridge guard",
                "add chain bridge guard pre { type filter hook prerouting priority 0 ; }",
                "add rule bridge guard pre ether type ip drop",
            ],
            "table bridge guard, chain pre, by the rule",
        ),
        (
            &[
                "add table netdev guard",
                "add chain netdev guard in { type filter hook ingress device uplink priority 0 ; }",
                "add rule netdev guard in ip protocol tcp drop",
            ],
            "table netdev guard, chain in, by the rule",
        ),
        (
            &["sh iptables-legacy -t raw -A PREROUTING -s 10.1.0.0/24 -j DROP"],
            "iptables-legacy -t raw: -A PREROUTING -s 10.1.0.0/24 -j DROP",
        ),
    ]);
}

#[test]
fn what_few_pods_need_is_a_warning() {
    let input = "add chain inet guard in { type filter hook input priority 0 ; policy drop ; }";
    let host = Host::new();
    let node = Node::new(
        &host,
        &[TABLE, input, "add rule inet guard in iifname lo accept"],
    );
    assert!(node.reaches_others());
    assert!(!udp(&node.pod, &host, "10.1.0.1"));
    let words = [
        "to port 53 of the node",
        "table inet guard, chain in, by its policy",
    ];
    let findings = node.tool.doctor();
    findings.expect("warning", "firewall", &words);
    assert_eq!(findings.status, 1);
    host.run("nft", &["flush ruleset"]);
    node.tool.run(&["reload"]).ok();
    for rule in [
        TABLE,
        FORWARD,
        "add rule inet guard gate udp dport 443 drop",
    ] {
        host.run("nft", &[rule]);
    }
    let findings = node.tool.doctor();
    let words = ["to other hosts (UDP)", "by the rule with handle"];
    findings.expect("warning", "firewall", &words);
    assert_eq!(findings.status, 1);
}

/// Redirects to a port of the node on which no program listens.
#[test]
fn redirected_packets_are_reported() {
    let host = Host::new();
    let nat = "add chain inet guard nat { type nat hook prerouting priority dstnat ; }";
    let rule = "add rule inet guard nat tcp dport 443 redirect to :9";
    let node = Node::new(&host, &[TABLE, nat, rule]);
    let words = [
        "to other hosts (TCP)",
        "lost, and no rule was seen that drops them",
    ];
    node.tool.doctor().expect("warning", "firewall", &words);
}

#[test]
fn rules_that_cannot_be_tried_are_reported() {
    let host = Host::new();
    let node = Node::new(&host, &["sh iptables-legacy -A FORWARD -j ACCEPT"]);
    let empty = host.dir().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let outcome = node.tool.run(&["doctor"]).env("PATH", &empty).run();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    let page = outcome
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        page.contains("could not be tried: run iptables-legacy-save"),
        "{page}"
    );
    assert!(!page.contains("new packets of pods on cni1 pass"), "{page}");
}

/// Test packets stay in the copy, and the node stays unchanged.
#[test]
fn nothing_is_changed_and_nothing_leaves_the_node() {
    let host = Host::new();
    let rules = [TABLE, FORWARD, "sh iptables-legacy -L -n"];
    let node = Node::new(&host, &rules);
    let count = [
        "add table inet count",
        "add chain inet count in { type filter hook prerouting priority 0 ; }",
        "add rule inet count in th dport { 53, 443 } counter",
    ];
    for line in count {
        node.outside.run("nft", &[line]);
    }
    let state = || {
        let listed = ["link", "address", "route"].map(|it| host.ip(it));
        let rules = host.run("nft", &["-a", "list", "ruleset"]);
        let legacy = host.run(
            "sh",
            &["-c", "iptables-legacy-save | sed 's,[[].*,,; /^#/d'"],
        );
        (
            listed,
            rules,
            legacy,
            node.outside.run("nft", &["list", "ruleset"]),
        )
    };
    let before = state();
    assert_eq!(node.tool.doctor().status, 0, "{:#?}", node.tool.doctor());
    assert_eq!(state(), before);
    assert!(before.3.contains("packets 0 bytes 0"));
}
