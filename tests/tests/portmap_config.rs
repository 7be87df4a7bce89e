//! portmap: conditions, and keys that the reference's backends need.

use serde_json::{Value, json};
use tests::ports::rules;
use tests::traffic::tcp_by_port;
use tests::{Host, Place as _};

const V4: &str = "conditionsV4";

/// Conditions with their keys, and whether the packets of the test meet them.
const CONDITIONS: [(&str, &str, bool); 20] = [
    (V4, "ip saddr 192.0.2.2", true),
    (V4, "ip saddr != 192.0.2.2", false),
    (V4, "ip saddr 192.0.2.0/28", true),
    (V4, "ip saddr != 192.0.2.0/28", false),
    (V4, "ip daddr 192.0.2.1", true),
    (V4, "ip daddr != 192.0.0.0/16", false),
    (V4, "iifname \"uplink\"", true),
    (V4, "iifname != uplink", false),
    (V4, "meta mark 0x2a", true),
    (V4, "mark != 42", false),
    (V4, "iifname uplink ip saddr 192.0.2.7", false),
    (V4, "iifname != {\"lo\",\"uplink\"}", false),
    (V4, "iifname {lo, uplink} ip saddr 192.0.2.2", true),
    (V4, "ip saddr { 192.0.2.1-192.0.2.3, 10.9.0.0/16 }", true),
    (
        V4,
        "ip saddr != { 192.0.2.1-192.0.2.3, 10.9.0.0/16 }",
        false,
    ),
    (V4, "ip saddr 192.0.2.3-192.0.2.9", false),
    (V4, "meta mark { 1, 41-0x2b }", true),
    (V4, "meta mark != 41-43", false),
    ("conditionsV6", "ip6 saddr fe80::/10", true),
    ("conditionsV6", "ip6 saddr fe80:: - fe80:0:0:1::", true),
];

#[test]
fn ports_are_only_for_packets_that_meet_the_conditions() {
    for (key, condition, is_met) in CONDITIONS {
        let host = Host::new();
        let outside = host.outside();
        let mark = "add table ip m; add chain ip m c { type filter hook prerouting priority -200; }; add rule ip m c meta mark set 42";
        host.run("nft", &[mark]);
        let a = host.sandbox("a");
        let ports = host.ports().with(key, json!([condition]));
        for port in ["8080:80", "192.0.2.1:8080:80"] {
            let portmap = ports.add(&a, &[port]);
            let seen = tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80));
            assert_eq!(seen.is_some(), is_met, "{condition}");
            assert_eq!(portmap.on("CHECK", &a).ok(), Value::Null);
            portmap.del(&a);
            assert!(!rules(&host).contains("conditions-"), "{}", rules(&host));
            ports.bridge().del(&a);
        }
    }
}

#[test]
fn networks_with_the_same_conditions_share_a_chain_and_others_have_none() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let narrow = host
        .ports()
        .with("conditionsV4", json!(["ip", "saddr", "192.0.2.9"]));
    narrow.add(&a, &["8080:80"]);
    narrow.add(&b, &["8081:80"]);
    host.ports().add(&c, &["8082:80"]);
    assert_eq!(rules(&host).matches("chain conditions-").count(), 1);
    for (port, pod, is_met) in [(8080, &a, false), (8081, &b, false), (8082, &c, true)] {
        let seen = tcp_by_port(&outside, &format!("192.0.2.1:{port}"), (pod, 80));
        assert_eq!(seen.is_some(), is_met, "{port}");
    }
    narrow.forgotten(&a).ok();
    assert_eq!(rules(&host).matches("chain conditions-").count(), 1);
}

#[test]
fn keys_of_other_backends_are_accepted_and_reported_to_have_no_effect() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (key, value, words) in [
        ("backend", json!("iptables"), "the plugin uses nf_tables"),
        (
            "externalSetMarkChain",
            json!("KUBE-MARK-MASQ"),
            "without marks",
        ),
        ("markMasqBit", json!(5), "without marks"),
    ] {
        let ports = host.ports().with(key, value);
        let portmap = ports.attach(&a, &["8080:80"]);
        let outcome = portmap.on("ADD", &a).run();
        outcome.ok();
        assert!(outcome.stderr.contains(words), "{outcome:?}");
        assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
        portmap.del(&a);
        ports.bridge().del(&a);
    }
    let portmap = host
        .ports()
        .with("backend", "nftables")
        .attach(&a, &["8080:80"]);
    assert_eq!(portmap.on("ADD", &a).run().stderr, "");
}

#[test]
fn a_port_that_is_asked_for_twice_is_forwarded_once() {
    let host = Host::new();
    let a = host.sandbox("a");
    let twice = ["8080:80", "0.0.0.0:8080:80", "8080:80"];
    let portmap = host.ports().add(&a, &twice);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    assert_eq!(portmap.on("CHECK", &a).ok(), Value::Null);
    portmap.del(&a);
    assert!(!rules(&host).contains("cni:"), "{}", rules(&host));
}

#[test]
fn invalid_values_are_refused_before_any_change() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ports = host.ports();
    for (key, value, words) in [
        ("backend", json!("ipvs"), "backend"),
        ("markMasqBit", json!(32), "32 is not within 0 to 31"),
        ("snat", json!("yes"), "snat"),
        (
            "conditionsV4",
            json!(["!", "-d", "192.0.2.0/24"]),
            "\"! -s A\" is \"ip saddr != A\"",
        ),
        (
            "conditionsV6",
            json!(["ip saddr 192.0.2.1"]),
            "conditionsV6",
        ),
    ] {
        let portmap = ports.clone().with(key, value).attach(&a, &["8080:80"]);
        portmap.on("ADD", &a).error().expect(7, &[words]);
        ports.bridge().del(&a);
    }
    for mapping in [
        "0:80",
        "8080:0",
        "65536:80",
        "8080:80/icmp",
        "[::1]:8080:80",
        "169.254.1.1:8080:80",
        "[fe80::1]:8080:80",
        "224.0.0.1:8080:80",
        "[ff02::1]:8080:80",
        "255.255.255.255:8080:80",
    ] {
        let portmap = ports.attach(&a, &["9090:90", mapping]);
        let refusal = portmap.on("ADD", &a).error();
        refusal.expect(7, &["runtimeConfig.portMappings[1]"]);
        ports.bridge().del(&a);
    }
    assert_eq!(host.run("nft", &["list", "ruleset"]), "");
}

#[test]
fn two_ways_to_mark_are_refused_as_by_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let both = host.ports().with("markMasqBit", 5);
    let both = both.with("externalSetMarkChain", "KUBE-MARK-MASQ");
    let portmap = both.attach(&a, &["8080:80"]);
    let refusal = portmap.on("ADD", &a).error();
    refusal.expect(7, &["markMasqBit", "externalSetMarkChain"]);
    let theirs = portmap.by_reference().on("ADD", &a).error();
    assert!(theirs.mentions("Cannot specify"), "{theirs:?}");
    assert_eq!(host.run("nft", &["list", "ruleset"]), "");
}
