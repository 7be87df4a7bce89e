//! host-local: requested addresses and rejected configurations.

use serde_json::{Value, json};
use tests::{Host, Network};

fn dual_stack(host: &Host) -> Network<'_> {
    let sets = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    host.host_local().with("ipam.ranges", sets)
}

fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter()
        .map(|ip| ip["address"].as_str().unwrap())
        .collect()
}

#[test]
fn an_address_is_asked_for_in_any_of_three_ways() {
    let host = Host::new();
    let network = host.host_local();
    let by_args = network.call_for("ADD", "c1").args("IP=10.1.0.41").ok();
    assert_eq!(addresses(&by_args), ["10.1.0.41/24"]);
    let conventional = network.clone().with("args.cni.ips", json!(["10.1.0.42"]));
    assert_eq!(
        addresses(&conventional.call_for("ADD", "c2").ok()),
        ["10.1.0.42/24"]
    );
    let runtime = network
        .clone()
        .with("runtimeConfig.ips", json!(["10.1.0.43"]));
    assert_eq!(
        addresses(&runtime.call_for("ADD", "c3").ok()),
        ["10.1.0.43/24"]
    );
    let with_prefix = network.with("runtimeConfig.ips", json!(["10.1.0.44/24"]));
    assert_eq!(
        addresses(&with_prefix.call_for("ADD", "c4").ok()),
        ["10.1.0.44/24"]
    );
}

#[test]
fn one_address_of_each_family_may_be_asked_for() {
    let host = Host::new();
    let both = dual_stack(&host).with("runtimeConfig.ips", json!(["fd00:1::77", "10.1.0.77"]));
    let result = both.call_for("ADD", "c1").ok();
    assert_eq!(addresses(&result), ["10.1.0.77/24", "fd00:1::77/64"]);
    let one = dual_stack(&host).with("runtimeConfig.ips", json!(["fd00:1::78"]));
    let result = one.call_for("ADD", "c2").ok();
    assert_eq!(addresses(&result)[1], "fd00:1::78/64");
}

#[test]
fn what_runtimes_say_of_a_pod_is_no_request() {
    let host = Host::new();
    let network = host.host_local();
    let pod = "K8S_POD_NAME=web;IgnoreUnknown=1;K8S_POD_UID=u";
    network.call_for("ADD", "c1").args(pod).ok();
    let strict = network.call_for("ADD", "c2").args("PLUGH=1");
    strict.error().expect(4, &["PLUGH"]);
}

#[test]
fn a_held_address_is_refused() {
    let host = Host::new();
    let network = host.host_local();
    network.call_for("ADD", "c1").args("IP=10.1.0.9").ok();
    let refusal = network.call_for("ADD", "c2").args("IP=10.1.0.9").error();
    assert!(
        refusal.mentions("10.1.0.9") && refusal.mentions("c1"),
        "{refusal:?}"
    );
    assert_eq!(host.leases("pods").len(), 1);
}

#[test]
fn an_address_that_no_range_holds_is_refused_and_the_others_released() {
    let host = Host::new();
    let before = host.snapshot();
    for ips in [
        json!(["192.0.2.7"]),
        json!(["10.1.0.9", "192.0.2.7"]),
        json!(["fd00:1::9", "192.0.2.7", "10.1.0.9"]),
        json!(["10.1.0.9", "10.1.0.10"]),
    ] {
        let network = dual_stack(&host).with("runtimeConfig.ips", ips);
        network.call_for("ADD", "c1").error();
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn the_gateways_own_address_is_not_leased() {
    let host = Host::new();
    let refusal = host
        .host_local()
        .call_for("ADD", "c1")
        .args("IP=10.1.0.1")
        .error();
    assert!(refusal.mentions("10.1.0.1"), "{refusal:?}");
    let low = json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.1"}]]);
    let result = host
        .host_local()
        .with("ipam.ranges", low)
        .call_for("ADD", "c1")
        .ok();
    assert_eq!(addresses(&result), ["10.1.0.2/24"]);
}

#[test]
fn an_address_that_is_none_is_refused() {
    let host = Host::new();
    let network = host.host_local();
    let refusal = network.call_for("ADD", "c1").args("IP=10.1.0").error();
    assert!(matches!(refusal.code, 4 | 7), "{refusal:?}");
    assert!(
        refusal.mentions("CNI_ARGS") && refusal.mentions("10.1.0"),
        "{refusal:?}"
    );
    for key in ["args.cni.ips", "runtimeConfig.ips"] {
        let network = network.clone().with(key, json!(["x"]));
        network.call_for("ADD", "c1").error().expect(7, &[key, "x"]);
    }
}

#[test]
fn code_7_for_a_range_that_makes_no_sense_with_the_value() {
    let both = |start, end| json!({"subnet": "10.1.0.0/24", "rangeStart": start, "rangeEnd": end});
    expect_refused([
        (json!([[{}]]), "subnet"),
        (json!([[{"subnet": "10.1.0.0"}]]), "10.1.0.0"),
        (json!([[{"subnet": "10.1.0.5/24"}]]), "10.1.0.5/24"),
        (json!([[both("10.2.0.1", "10.1.0.9")]]), "10.2.0.1"),
        (json!([[both("10.1.0.9", "10.2.0.1")]]), "10.2.0.1"),
        (json!([[both("10.1.0.9", "10.1.0.8")]]), "10.1.0.9"),
        (json!([[both("fd00::1", "10.1.0.9")]]), "fd00::1"),
        (json!([[both("x", "10.1.0.9")]]), "x"),
        (
            json!([[{"subnet": "10.1.0.0/24", "gateway": "fd00::1"}]]),
            "fd00::1",
        ),
    ]);
}

#[test]
fn code_7_for_sets_that_make_no_sense_with_the_value() {
    expect_refused([
        (json!([]), "ranges"),
        (json!([[]]), "ranges"),
        (json!("10.1.0.0/24"), "ranges"),
        (
            json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00:1::/64"}]]),
            "fd00:1::",
        ),
        (
            json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.128/25"}]]),
            "10.1.0.128/25",
        ),
        (
            json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/25"}]]),
            "10.1.0.0/25",
        ),
    ]);
}

/// Checks that ADD with each of these ranges fails with code 7 and the word, and leaves nothing.
fn expect_refused<const N: usize>(cases: [(Value, &str); N]) {
    let host = Host::new();
    let before = host.snapshot();
    for (ranges, word) in cases {
        let network = host.host_local().with("ipam.ranges", ranges);
        network.call_for("ADD", "c1").error().expect(7, &[word]);
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn code_7_where_there_is_no_range_at_all() {
    let host = Host::new();
    let without_ipam = host.host_local().without("ipam");
    without_ipam
        .call_for("ADD", "c1")
        .error()
        .expect(7, &["ipam"]);
    let empty = host
        .host_local()
        .with("ipam", json!({"type": "host-local"}));
    empty.call_for("ADD", "c1").error().expect(7, &["ranges"]);
}

#[test]
fn del_succeeds_under_a_configuration_that_add_refuses() {
    let host = Host::new();
    host.host_local().call_for("ADD", "c1").ok();
    let broken = host
        .host_local()
        .with("ipam.ranges", json!([[{"subnet": "10.1.0.5/24"}]]));
    broken.call_for("DEL", "c1").ok();
    assert!(host.leases("pods").is_empty());
}

#[test]
fn a_gateway_may_lie_outside_its_subnet() {
    let host = Host::new();
    let range = json!([[{"subnet": "10.1.0.0/24", "gateway": "10.99.0.1"}]]);
    let result = host
        .host_local()
        .with("ipam.ranges", range)
        .call_for("ADD", "c1")
        .ok();
    assert_eq!(
        result["ips"][0],
        json!({"address": "10.1.0.1/24", "gateway": "10.99.0.1"})
    );
}

#[test]
fn routes_keep_their_attributes_in_every_version() {
    let host = Host::new();
    let route = json!({"dst": "10.9.0.0/16", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 0});
    let network = host.host_local().with("ipam.routes", json!([route]));
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let network = network.clone().with("cniVersion", version);
        assert_eq!(network.call_for("ADD", version).ok()["routes"][0], route);
    }
    for version in ["0.1.0", "0.2.0"] {
        let network = network.clone().with("cniVersion", version);
        let result = network.call_for("ADD", version).ok();
        assert_eq!(result["ip4"]["routes"][0], route);
    }
}

#[test]
fn code_7_for_a_route_that_makes_no_sense() {
    let host = Host::new();
    for (route, value) in [
        (json!({"dst": "10.9.0.0/33"}), "10.9.0.0/33"),
        (json!({"gw": "10.1.0.1"}), "dst"),
        (json!({"dst": "10.9.0.0/16", "gw": "x"}), "x"),
    ] {
        let network = host.host_local().with("ipam.routes", json!([route]));
        network
            .call_for("ADD", "c1")
            .error()
            .expect(7, &["routes", value]);
    }
}
