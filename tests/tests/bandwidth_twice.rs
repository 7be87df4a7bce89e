//! bandwidth: two of them in a chain.

use serde_json::{Value, json};
use tests::limited::record;
use tests::{Host, Network, Place as _, Sandbox};

fn limited<'h>(host: &'h Host, result: &Value, limits: Value) -> Network<'h> {
    let network = host.bandwidth().with("prevResult", result.clone());
    network.with("runtimeConfig.bandwidth", limits)
}

fn add_bridge(host: &Host) -> (Sandbox, Value) {
    let sandbox = host.sandbox("a");
    let result = host.bridge_v4().add(&sandbox);
    (sandbox, result)
}

/// Checks that DEL of both left neither a backstop nor a record.
#[track_caller]
fn expect_nothing(host: &Host) {
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("cni:"), "{rules}");
    assert!(!record("a").exists());
}

#[test]
fn limits_of_the_last_plugin_win_and_del_leaves_nothing() {
    let host = Host::new();
    let (a, joined) = add_bridge(&host);
    let limits = |rate| json!({"ingressRate": rate, "egressRate": rate});
    let first = limited(&host, &joined, limits(10_000_000));
    let result = first.add(&a);
    let second = limited(&host, &result, limits(5_000_000));
    assert_eq!(second.add(&a), result);
    second.check(&a, &result).ok();
    let host_link = joined["interfaces"][1]["name"].as_str().unwrap();
    let rates = [host.limit(host_link), a.limit("eth0")].map(|it| it.unwrap().0);
    assert_eq!(rates, [625_000, 625_000]);
    let refusal = first.check(&a, &result).error();
    refusal.expect(100, &[host_link, "eth0", "nf_tables"]);
    second.del(&a);
    first.del(&a);
    expect_nothing(&host);
}

#[test]
fn plugins_of_one_direction_each_limit_both() {
    let host = Host::new();
    let (a, joined) = add_bridge(&host);
    let egress = limited(&host, &joined, json!({"egressRate": 10_000_000}));
    let result = egress.add(&a);
    assert_eq!(result, joined);
    let ingress = limited(&host, &result, json!({"ingressRate": 5_000_000}));
    assert_eq!(ingress.add(&a), result);
    for network in [&egress, &ingress] {
        network.check(&a, &result).ok();
    }
    for network in [&ingress, &egress] {
        network.del(&a);
    }
    expect_nothing(&host);
}
