//! cnitool migrate: rules of the reference's `firewall` in the table `filter` of iptables.

use serde_json::json;
use tests::{Chain, Host, Place as _, Sandbox};

/// Returns the rules of `CNI-FORWARD` and of the isolating chains that `iptables-save` prints.
fn permissions(host: &Host, program: &str) -> Vec<String> {
    let saved = host.run(&format!("{program}-save"), &["-t", "filter"]);
    let lines = saved.lines().filter(|it| it.starts_with("-A"));
    lines.map(str::to_owned).collect()
}

/// Returns bridge and firewall, both of the reference, with addresses of `static`.
fn fence<'h>(host: &'h Host, bridge: &str, address: &str) -> Chain<'h> {
    let ipam = json!({"type": "static", "addresses": [{"address": address}]});
    Chain::new(host, &["bridge", "firewall"])
        .with("bridge", "macspoofchk", &json!(false))
        .with("bridge", "ipMasq", &json!(false))
        .with("bridge", "bridge", &json!(bridge))
        .with("bridge", "ipam", &ipam)
        .with("firewall", "ingressPolicy", &json!("same-bridge"))
        .with("firewall", "backend", &json!("iptables"))
        .by_reference()
}

/// Attaches the pod by this suite's bridge at 10.3.0.5, and gives it the reference's permission.
fn permit_ours(host: &Host, pod: &Sandbox) {
    let ours = host.bridge().with("bridge", "cni3");
    let ipam = json!({"type": "static", "addresses": [{"address": "10.3.0.5/24"}]});
    let result = ours.with("ipam", ipam).add(pod);
    let chain = fence(host, "cni3", "10.3.0.5/24");
    chain.call(1, "ADD", (pod, &result)).ok();
}

/// Rules of an operator.
const OPERATORS: [&str; 2] = [
    "-A CNI-ADMIN -s 10.2.0.5/32 -j ACCEPT",
    "-A CNI-FORWARD -s 10.9.0.5/32 -j ACCEPT",
];

/// `static` leases nothing and the cache is elsewhere: only the kernel shows the pods' addresses.
#[test]
fn permission_of_deleted_pods_is_removed_and_that_of_live_pods_stays() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let [of_a, of_b] = [("cni1", "10.1.0.5/24"), ("cni2", "10.2.0.5/24")]
        .map(|(bridge, address)| fence(&host, bridge, address));
    of_a.add(&a).unwrap();
    of_b.add(&b).unwrap();
    permit_ours(&host, &c);
    for rule in OPERATORS {
        host.sh(&format!("iptables-nft {rule}"));
    }
    host.end(&b);
    let before = permissions(&host, "iptables-nft");
    let told = host.tool().lines(&["migrate"]);
    let line = |state: &str, address: &str| {
        format!("{state:<8}iptables-nft-save -t filter: CNI-FORWARD, {address}")
    };
    let expected = [
        ("live", "10.1.0.5"),
        ("live", "10.3.0.5"),
        ("gone", "10.2.0.5"),
    ];
    assert_eq!(told, expected.map(|(state, it)| line(state, it)));
    assert_eq!(permissions(&host, "iptables-nft"), before);
    host.tool().lines(&["migrate", "--remove"]);
    let is_of_b = |it: &String| it.contains("10.2.0.5") && !it.contains("CNI-ADMIN");
    let mut left = before.clone();
    left.retain(|it| !is_of_b(it));
    assert_eq!(permissions(&host, "iptables-nft"), left);
    host.end(&a);
    host.end(&c);
    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!(told.len(), 3, "{told:#?}");
    let left = permissions(&host, "iptables-nft");
    let is_left = |it: &&str| left.iter().any(|line| line == it);
    assert!(OPERATORS.iter().all(is_left), "{left:#?}");
    assert!(!left.iter().any(|it| it.contains("ISOLATION")), "{left:#?}");
    assert!(host.tool().lines(&["migrate"]).is_empty());
}

/// Without rules of pods, ports of the reference's bridge show that the isolation is in use.
#[test]
fn isolation_stays_as_long_as_the_bridge_has_ports_of_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    fence(&host, "cni1", "10.1.0.5/24").add(&a).unwrap();
    host.run("iptables-nft", &["-F", "CNI-FORWARD"]);
    let shared =
        |state: &str| format!("{state:<8}iptables-nft-save -t filter: what all attachments shared");
    let before = permissions(&host, "iptables-nft");
    assert_eq!(
        host.tool().lines(&["migrate", "--remove"]),
        [shared("live")]
    );
    assert_eq!(permissions(&host, "iptables-nft"), before);
    host.end(&a);
    assert_eq!(
        host.tool().lines(&["migrate", "--remove"]),
        [shared("removed")]
    );
    assert!(host.tool().lines(&["migrate"]).is_empty());
}

/// The reference writes these rules since 1.7.0, with `ingressPolicy` `isolated`.
#[test]
fn isolation_of_newer_versions_is_removed() {
    let host = Host::new();
    let policies = |policy: &str| {
        format!("-m comment --comment 'CNI firewall plugin rules (ingressPolicy: {policy})'")
    };
    let (shared, own) = (policies("same-bridge|isolated"), policies("isolated"));
    let [stage1, stage2] = [1, 2].map(|it| format!("CNI-ISOLATION-STAGE-{it}"));
    for rule in [
        format!("-N {stage1}"),
        format!("-N {stage2}"),
        format!("-I FORWARD -j {stage1} {shared}"),
        format!("-A {stage1} -i cni1 -o cni1 -j DROP {own}"),
        format!("-A {stage1} -i cni1 ! -o cni1 -j {stage2} {own}"),
        format!("-A {stage1} -j RETURN {shared}"),
        format!("-A {stage2} -o cni1 -j DROP {shared}"),
        format!("-A {stage2} -j RETURN {shared}"),
    ] {
        host.sh(&format!("iptables-nft {rule}"));
    }
    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(permissions(&host, "iptables-nft").is_empty());
}

#[test]
fn mac_checks_of_deleted_pods_are_removed_and_those_of_live_pods_stay() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    for (pod, address) in [(&a, "10.1.0.5/24"), (&b, "10.1.0.6/24")] {
        let chain = fence(&host, "cni1", address).with("bridge", "macspoofchk", &json!(true));
        chain.call(0, "ADD", (pod, &json!(null))).ok();
    }
    let rules = |pod: &Sandbox| {
        let table = host.run("nft", &["list", "table", "bridge", "nat"]);
        table
            .matches(&format!("macspoofchk-{}-eth0", pod.name()))
            .count()
    };
    let before = [&a, &b].map(rules);
    assert!(before.iter().all(|it| *it > 0), "{before:?}");
    host.end(&b);
    let told = host.tool().lines(&["migrate", "--remove"]);
    let of = |state: &str, pod: &str| {
        let id = format!("{pod}-eth0");
        format!("{state:<8}nft list table bridge nat: cni-br-iface-{id}, macspoofchk-{id}")
    };
    assert_eq!(told, [of("live", "a"), of("removed", "b")]);
    assert_eq!([&a, &b].map(rules), [before[0], 0]);
    let chains = host.run("nft", &["list", "table", "bridge", "nat"]);
    assert!(!chains.contains("cni-br-iface-b"), "{chains}");
}

#[test]
fn doctor_counts_permission_of_live_and_of_deleted_pods() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    fence(&host, "cni1", "10.1.0.5/24").add(&a).unwrap();
    fence(&host, "cni1", "10.1.0.6/24").add(&b).unwrap();
    let tool = host.tool();
    let bridge = host.bridge_v4().with("bridge", "cni1");
    tool.configure("pods", &[bridge.config().clone()]);
    let words = ["chains and rules of the Go plugins: 2"];
    tool.doctor().expect("ok", "remnant", &words);
    host.end(&b);
    let words = ["for deleted pods: 1", "cnitool migrate --remove"];
    let findings = tool.doctor();
    findings.expect("warning", "remnant", &words);
    for command in findings.fixes("remnant") {
        tool.obey(&command);
    }
    let words = ["chains and rules of the Go plugins: 1"];
    tool.doctor().expect("ok", "remnant", &words);
}
