//! bandwidth: two of them in a chain.

use serde_json::{Value, json};
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

#[test]
fn second_plugin_with_an_egress_limit_is_refused_and_del_leaves_nothing() {
    let host = Host::new();
    let (a, joined) = add_bridge(&host);
    let limits = |rate| json!({"ingressRate": rate, "egressRate": rate});
    let first = limited(&host, &joined, limits(10_000_000));
    let result = first.add(&a);
    let second = limited(&host, &result, limits(5_000_000));
    let ifb = result["interfaces"][3]["name"].as_str().unwrap();
    let refused = second.on("ADD", &a).error();
    refused.expect(7, &["prevResult", ifb, "keep one bandwidth plugin"]);
    // The limits of the first one are in force.
    first.check(&a, &result).ok();
    second.del(&a);
    first.del(&a);
    assert!(host.ifbs().is_empty());
}

#[test]
fn plugins_of_one_direction_each_limit_both() {
    let host = Host::new();
    let (a, joined) = add_bridge(&host);
    let egress = limited(&host, &joined, json!({"egressRate": 10_000_000}));
    let result = egress.add(&a);
    let ingress = limited(&host, &result, json!({"ingressRate": 5_000_000}));
    assert_eq!(ingress.add(&a), result);
    for network in [&egress, &ingress] {
        network.check(&a, &result).ok();
        network.del(&a);
    }
    assert!(host.ifbs().is_empty());
}
