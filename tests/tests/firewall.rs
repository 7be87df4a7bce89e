//! firewall: traffic of pods passes chains of iptables that drop, and nothing else does.

use serde_json::{Value, json};
use tests::fence::{CLOSED, Fence};
use tests::traffic::{tcp, tcp_by_port, udp};
use tests::{Host, Network, Place as _, Sandbox};

fn table(host: &Host) -> String {
    host.run("nft", &["list", "table", "inet", "cni-firewall"])
}

#[track_caller]
fn expect_open(fence: &Fence<'_>, pod: &Sandbox) {
    assert_eq!(fence.opens(pod), [true; 2]);
}

#[track_caller]
fn expect_closed(fence: &Fence<'_>, pod: &Sandbox) {
    assert_eq!(fence.opens(pod), [false; 2]);
}

#[test]
fn pods_open_connections_although_another_program_drops() {
    for (_, rules) in CLOSED {
        let host = Host::new();
        host.sh(rules);
        let fence = host.fence();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let firewall = fence.join(&a, &[]);
        fence.join(&b, &[]);
        expect_closed(&fence, &a);
        assert_eq!(firewall.add(&a), firewall.config()["prevResult"]);
        expect_open(&fence, &a);
        assert!(udp(&a, &fence.outside, "192.0.2.2"));
        expect_closed(&fence, &b);
        firewall.check(&a, &firewall.config()["prevResult"]).ok();
        firewall.del(&a);
        expect_closed(&fence, &a);
    }
}

#[test]
fn pods_open_connections_although_another_program_drops_later() {
    for (_, rules) in CLOSED {
        let host = Host::new();
        let fence = host.fence();
        let a = host.sandbox("a");
        fence.add(&a, &[]);
        expect_open(&fence, &a);
        host.sh(rules);
        expect_open(&fence, &a);
    }
}

#[test]
fn other_hosts_reach_forwarded_ports_and_nothing_else() {
    for (_, rules) in CLOSED {
        let host = Host::new();
        host.sh(rules);
        let fence = host.fence();
        let a = host.sandbox("a");
        let firewall = fence.join(&a, &["8080:80"]);
        let port = |target| tcp_by_port(&fence.outside, target, (&a, 80)).is_some();
        assert!(!port("192.0.2.1:8080"));
        firewall.add(&a);
        assert!(port("192.0.2.1:8080") && port("[2001:db8::1]:8080"));
        assert!(!fence.is_opened(&a, "10.1.0.2") && !fence.is_opened(&a, "fd00:1::2"));
    }
}

/// The mark stands for permission only between two chains of this plugin.
#[test]
fn mark_of_another_program_gives_no_permission_and_ours_does_not_leave() {
    let host = Host::new();
    let (_, rules) = CLOSED[0];
    host.sh(rules);
    for line in [
        "add table inet strange",
        "add chain inet strange pre { type filter hook prerouting priority mangle ; }",
        "add rule inet strange pre meta mark set 0xffffffff",
        "add chain inet strange post { type filter hook postrouting priority mangle ; }",
        "add rule inet strange post oifname uplink meta mark 0xffffefff counter comment \"cleared\"",
        "add rule inet strange post oifname uplink meta mark & 0x1000 != 0 counter comment \"kept\"",
    ] {
        host.run("nft", &[line]);
    }
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    fence.add(&a, &[]);
    fence.join(&b, &[]);
    expect_closed(&fence, &b);
    assert!(!fence.is_opened(&a, "10.1.0.2"));
    expect_open(&fence, &a);
    let counted = host.run("nft", &["list", "chain", "inet", "strange", "post"]);
    let packets = |comment: &str| {
        let line = counted.lines().find(|it| it.contains(comment)).unwrap();
        !line.contains("packets 0 ")
    };
    assert!(packets("cleared") && !packets("kept"), "{counted}");
}

#[test]
fn admin_chain_is_asked_first() {
    for (key, chain) in [("", "CNI-ADMIN"), ("_Site-1.a", "_Site-1.a")] {
        let host = Host::new();
        let fence = host.fence().with("iptablesAdminChainName", key);
        let a = host.sandbox("a");
        fence.add(&a, &["8080:80"]);
        host.sh(&format!(
            "iptables-nft -P FORWARD DROP; iptables-nft -A {chain} -d 192.0.2.2 -p udp -j DROP"
        ));
        assert!(tcp(&a, &fence.outside, "192.0.2.2").is_some());
        assert!(!udp(&a, &fence.outside, "192.0.2.2"));
        let listed = host.sh("iptables-nft -S FORWARD; iptables-nft -S CNI-FORWARD");
        let targets: Vec<_> = listed
            .lines()
            .filter_map(|it| it.split_once("-j "))
            .map(|it| it.1)
            .collect();
        assert_eq!(targets, ["CNI-FORWARD", chain, "ACCEPT"]);
        host.sh("nft list ruleset > /run/rules; nft -c -f /run/rules");
    }
}

#[test]
fn rules_survive_that_iptables_and_nft_save_and_load_them() {
    let host = Host::new();
    // nft(8) itself writes rules of iptables in a form that iptables does not read; these it leaves.
    host.sh("for p in iptables-nft ip6tables-nft; do $p -P FORWARD DROP; done");
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let firewall = fence.add(&a, &[]);
    for line in [
        "for p in iptables ip6tables; do $p-nft-save > saved; $p-nft-restore < saved; done",
        "nft list ruleset > saved; nft flush ruleset; nft -f saved",
    ] {
        let dir = host.dir().display();
        host.sh(&format!("cd {dir}; {line}"));
        expect_open(&fence, &a);
        firewall.check(&a, &firewall.config()["prevResult"]).ok();
    }
    // No rule is added a second time.
    let listed = || host.sh("iptables-nft -S; ip6tables-nft -S");
    let before = listed();
    fence.add(&b, &[]);
    assert_eq!(listed(), before);
    expect_open(&fence, &b);
}

#[test]
fn what_a_reload_of_the_firewall_removes_is_reported_and_restored() {
    for (line, words) in [
        (
            "iptables-nft -F FORWARD",
            "table ip filter lacks the jump to CNI-FORWARD",
        ),
        (
            "ip6tables-nft -F CNI-FORWARD",
            "lacks the rule that accepts mark 0x1000/0x1000",
        ),
        ("nft flush ruleset", "pods4 is missing"),
        ("nft delete table inet cni-firewall", "pods6 is missing"),
        (
            "nft flush chain inet cni-firewall unmark-12",
            "chain unmark-12",
        ),
        (
            "nft flush set inet cni-firewall pods4",
            "element of cni:pods/a/eth0",
        ),
    ] {
        let host = Host::new();
        let (_, rules) = CLOSED[0];
        let fence = host.fence();
        let a = host.sandbox("a");
        let firewall = fence.add(&a, &[]);
        let result = firewall.config()["prevResult"].clone();
        host.sh(line);
        firewall
            .check(&a, &result)
            .error()
            .expect(100, &[words, "cnitool reload"]);
        firewall.on("RELOAD", &a).ok();
        firewall.check(&a, &result).ok();
        // Docker's rules after a flush.
        host.sh(rules);
        expect_open(&fence, &a);
    }
}

#[test]
fn reload_restores_nothing_after_del() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.add(&a, &[]);
    firewall.del(&a);
    firewall.on("RELOAD", &a).error().expect(
        100,
        &["there is no record /run/cni/firewall/cni:pods:a:eth0"],
    );
    assert!(!table(&host).contains("cni:pods"));
}

/// A new pod gets the address while the old one still exists for this plugin.
#[test]
fn address_keeps_permission_when_its_former_pod_is_deleted() {
    let host = Host::new();
    let (_, rules) = CLOSED[0];
    host.sh(rules);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let before = fence.add(&a, &[]);
    host.bridge().del(&a);
    host.sh(&format!("rm -rf {}", host.lease_dir().display()));
    fence.add(&b, &[]);
    before.del(&a);
    before.on("RELOAD", &a).error();
    expect_open(&fence, &b);
}

/// Calls of DEL that need no more than the owner.
const REMOVALS: [fn(Network<'_>) -> Network<'_>; 4] = [
    |firewall| firewall,
    |firewall| firewall.with("prevResult", json!({"ips": 7})),
    |firewall| firewall.with("backend", 7).with("markBit", "x"),
    |firewall| firewall.with("ingressPolicy", "open"),
];

#[test]
fn del_removes_by_owner_alone() {
    let host = Host::new();
    let fence = host.fence().with("ingressPolicy", "isolated");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let other = fence.add(&b, &[]);
    let firewall = fence.join(&a, &[]);
    for asking in REMOVALS {
        firewall.add(&a);
        let asking = asking(fence.firewall().clone());
        let forgotten = asking.on("DEL", &a).without("CNI_NETNS");
        assert_eq!(forgotten.ok(), Value::Null);
        let left = table(&host);
        assert!(!left.contains("cni:pods/a/eth0"), "{left}");
        other.check(&b, &other.config()["prevResult"]).ok();
    }
    other.del(&b);
    assert!(!table(&host).contains("elements"), "{}", table(&host));
    assert_eq!(records(&host), "");
}

#[test]
fn gc_removes_what_is_not_listed() {
    let host = Host::new();
    let fence = host.fence().with("ingressPolicy", "isolated");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    fence.add(&a, &[]);
    let kept = fence.add(&b, &[]);
    let outcome = fence.firewall().gc(&[&b]).run();
    outcome.ok();
    assert!(outcome.stderr.contains("cni:pods/a/eth0"), "{outcome:?}");
    assert!(!table(&host).contains("cni:pods/a/eth0"));
    kept.check(&b, &kept.config()["prevResult"]).ok();
    let other = fence.firewall().clone().with("name", "others");
    other.gc(&[]).ok();
    kept.check(&b, &kept.config()["prevResult"]).ok();
    fence.firewall().gc(&[]).ok();
    assert!(!table(&host).contains("elements"), "{}", table(&host));
    assert_eq!(records(&host), "");
}

fn records(host: &Host) -> String {
    host.run("find", &["/run/cni/firewall", "-type", "f"])
}

#[test]
fn failed_add_leaves_nothing_of_the_pod() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.join(&a, &[]);
    host.run("nft", &["add table ip filter"]);
    host.run(
        "nft",
        &["add chain ip filter CNI-FORWARD { type filter hook input priority 0 ; }"],
    );
    let refused = firewall.on("ADD", &a).error();
    refused.expect(100, &["nf_tables", "add rule to chain FORWARD"]);
    assert!(!table(&host).contains("cni:pods"));
    assert_eq!(records(&host), "");
}

#[test]
fn failed_second_add_leaves_the_permission_of_the_first() {
    let host = Host::new();
    let (_, rules) = CLOSED[1];
    host.sh(rules);
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.add(&a, &[]);
    host.sh("iptables -F CNI-FORWARD; iptables -A CNI-ADMIN -j CNI-FORWARD");
    firewall.on("ADD", &a).error().expect(100, &["nf_tables"]);
    host.sh("iptables -F CNI-ADMIN");
    firewall.on("RELOAD", &a).ok();
    expect_open(&fence, &a);
    firewall.check(&a, &firewall.config()["prevResult"]).ok();
    firewall.del(&a);
    assert!(!table(&host).contains("cni:pods"));
    assert_eq!(records(&host), "");
}

#[test]
fn address_may_be_in_the_result_twice() {
    let host = Host::new();
    let (_, rules) = CLOSED[1];
    host.sh(rules);
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = fence.join(&a, &[]);
    let mut result = firewall.config()["prevResult"].clone();
    let ips = result["ips"].as_array_mut().unwrap();
    ips.extend(ips.clone());
    let firewall = firewall.with("prevResult", result.clone());
    for network in [firewall.by_reference(), firewall] {
        assert_eq!(network.add(&a)["ips"], result["ips"]);
        expect_open(&fence, &a);
        network.check(&a, &result).ok();
        network.del(&a);
        expect_closed(&fence, &a);
    }
}

#[test]
fn networks_with_different_marks_do_not_disturb_each_other() {
    let host = Host::new();
    let (_, rules) = CLOSED[1];
    host.sh(rules);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let first = fence.add(&a, &[]);
    let other = fence.with("MARKBIT", 20);
    let second = other.add(&b, &[]);
    for (firewall, pod) in [(first, &a), (second, &b)] {
        firewall.check(pod, &firewall.config()["prevResult"]).ok();
        expect_open(&other, pod);
    }
}

#[test]
fn values_that_make_no_sense_are_refused_with_their_key() {
    let host = Host::new();
    let a = host.sandbox("a");
    let fence = host.fence();
    let firewall = fence.join(&a, &[]);
    for (key, value, words) in [
        ("backend", json!("ebtables"), "backend"),
        ("ingressPolicy", json!("closed"), "ingressPolicy"),
        ("markBit", json!(14), "kube-proxy"),
        ("markBit", json!(-1), "markBit"),
        ("iptablesAdminChainName", json!("a b"), "use a letter"),
        ("iptablesAdminChainName", json!(7), "iptablesAdminChainName"),
        ("iptablesAdminChainName", json!("a;b"), "use a letter"),
        ("iptablesAdminChainName", json!("drop"), "keyword of nft"),
    ] {
        let bad = firewall.clone().with(key, value.clone());
        bad.on("ADD", &a).error().expect(7, &[words]);
        let newest = bad.with("cniVersion", "1.1.0");
        newest.call("STATUS").error().expect(7, &[words]);
    }
    assert!(
        !host
            .run("nft", &["list", "ruleset"])
            .contains("cni-firewall")
    );
    for (key, value) in [
        ("backend", ""),
        ("BACKEND", "nftables"),
        ("backend", "iptables"),
    ] {
        firewall.clone().with(key, value).add(&a);
    }
}
