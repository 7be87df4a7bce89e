//! static: addresses from every source, and rejected configurations. The reference gets the same
//! requests.

use serde_json::{Value, json};
use tests::{Example, Host, Invocation, Network, Place as _, Refusal};

/// Versions that the reference of Debian 12 knows.
const VERSIONS: [&str; 6] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];

fn call(network: &Network<'_>, verb: &str, args: &str) -> Invocation {
    network.call_for(verb, "c1").args(args)
}

/// Runs ADD and compares the result with the reference's.
#[track_caller]
fn same_as_reference(network: &Network<'_>, args: &str) -> Value {
    let result = call(network, "ADD", args).ok();
    let reference = call(&network.by_reference(), "ADD", args).ok();
    assert_eq!(without_empty(&result), without_empty(&reference));
    result
}

/// Returns the result without empty keys, which the reference writes or not.
fn without_empty(result: &Value) -> Value {
    let mut result = result.clone();
    let keys = result.as_object_mut().unwrap();
    keys.retain(|_, value| *value != json!({}) && *value != json!([]));
    result
}

/// Returns the refusal of ADD, which the reference also refuses.
#[track_caller]
fn refused_by_both(network: &Network<'_>, args: &str) -> Refusal {
    call(&network.by_reference(), "ADD", args).error();
    call(network, "ADD", args).error()
}

/// Returns the addresses of a result, each with its gateway.
fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    let texts = ips.map(|ip| match ip["gateway"].as_str() {
        Some(gateway) => format!("{} by {gateway}", ip["address"].as_str().unwrap()),
        None => ip["address"].as_str().unwrap().to_owned(),
    });
    texts.collect()
}

#[test]
fn addresses_routes_and_name_servers_are_those_of_the_reference_in_every_version() {
    let host = Host::new();
    let dns = json!({"nameservers": ["192.0.2.53", "2001:db8::53"], "domain": "pods.test",
        "search": ["test"], "options": ["ndots:5"]});
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}, {"dst": "fd00:9::/64"}]);
    let network = host
        .fixed()
        .with("ipam.dns", dns)
        .with("ipam.routes", routes);
    for version in VERSIONS {
        same_as_reference(&network.clone().with("cniVersion", version), "");
    }
    let several = json!([{"address": "10.1.0.2/24"}, {"address": "10.2.0.2/16"}, {"address": "fd00:1::2/64"},
        {"address": "fd00:2::2/128", "gateway": "fe80::1"}]);
    for version in VERSIONS.into_iter().filter(|version| *version >= "0.3.0") {
        let network = network.clone().with("cniVersion", version);
        same_as_reference(&network.with("ipam.addresses", several.clone()), "");
    }
    same_as_reference(&host.fixed().with("ipam", json!({"type": "static"})), "");
}

#[test]
fn arguments_append_addresses_with_gateways_of_their_own() {
    let host = Host::new();
    let network = host
        .fixed()
        .with("ipam.addresses", json!([{"address": "10.1.0.2/24"}]));
    for (args, expected) in [
        ("IP=10.2.0.2/24", &["10.1.0.2/24", "10.2.0.2/24"][..]),
        (
            "IP=10.2.0.2/24, fd00:2::2/64",
            &["10.1.0.2/24", "10.2.0.2/24", "fd00:2::2/64"],
        ),
        ("GATEWAY=10.1.0.1", &["10.1.0.2/24"]),
        (
            "IP=10.2.0.2/24,10.2.0.3/24;GATEWAY=10.2.0.1, 10.1.0.1",
            &[
                "10.1.0.2/24",
                "10.2.0.2/24 by 10.2.0.1",
                "10.2.0.3/24 by 10.2.0.1",
            ],
        ),
        ("IgnoreUnknown=1;PLUGH=1;IP=", &["10.1.0.2/24"]),
    ] {
        assert_eq!(
            addresses(&same_as_reference(&network, args)),
            expected,
            "{args}"
        );
    }
    let ignored = call(&network, "ADD", "GATEWAY=10.1.0.1").run().stderr;
    assert!(ignored.contains("GATEWAY 10.1.0.1 is ignored"), "{ignored}");
    for pod in ["K8S_POD_NAME=web;K8S_POD_UID=u", "MAC=02:00:00:00:00:01"] {
        call(&network, "ADD", pod).ok();
    }
}

#[test]
fn lists_of_the_runtime_replace_all_other_addresses() {
    let host = Host::new();
    let args = "IP=10.2.0.2/24;GATEWAY=10.2.0.1";
    let conventional = host
        .fixed()
        .with("args.cni.ips", json!(["10.3.0.2/24", "fd00:3::2/64"]));
    let result = same_as_reference(&conventional, args);
    assert_eq!(addresses(&result), ["10.3.0.2/24", "fd00:3::2/64"]);
    let both = conventional.with("runtimeConfig.ips", json!(["10.4.0.2/24"]));
    assert_eq!(addresses(&same_as_reference(&both, args)), ["10.4.0.2/24"]);
    let empty = host.fixed().with("runtimeConfig.ips", json!([]));
    assert_eq!(addresses(&same_as_reference(&empty, args)).len(), 3);
    let replaced = both.with("ipam.addresses", json!([{"address": "none"}]));
    assert_eq!(
        addresses(&same_as_reference(&replaced, "")),
        ["10.4.0.2/24"]
    );
}

#[test]
fn keys_match_in_any_case() {
    let host = Host::new();
    let ipam = json!({"type": "static", "Addresses": [{"ADDRESS": "10.1.0.2/24", "Gateway": "10.1.0.1"}],
        "ROUTES": [{"Dst": "0.0.0.0/0", "GW": "10.1.0.9"}], "DNS": {"NameServers": ["192.0.2.53"]}});
    let network = host.fixed().with("ipam", ipam);
    let result = same_as_reference(&network, "");
    assert_eq!(addresses(&result), ["10.1.0.2/24 by 10.1.0.1"]);
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.53"]));
    let runtime = network.with("RuntimeConfig", json!({"IPs": ["10.4.0.2/24"]}));
    assert_eq!(addresses(&same_as_reference(&runtime, "")), ["10.4.0.2/24"]);
}

#[test]
fn route_attributes_are_in_results_of_every_version() {
    let host = Host::new();
    let route = json!({"dst": "10.9.0.0/16", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 0});
    let network = host.fixed().with("ipam.routes", json!([route]));
    for version in VERSIONS.into_iter().chain(["1.1.0"]) {
        let result = call(&network.clone().with("cniVersion", version), "ADD", "").ok();
        let routes = if version < "0.3.0" {
            &result["ip4"]["routes"]
        } else {
            &result["routes"]
        };
        assert_eq!(routes[0], route, "{version}");
    }
    let reference = call(&network.by_reference(), "ADD", "").ok();
    assert_eq!(
        reference["routes"][0],
        json!({"dst": "10.9.0.0/16", "gw": "10.1.0.1"})
    );
}

#[test]
fn code_7_for_an_address_that_is_none_with_its_key() {
    let host = Host::new();
    for (address, key, word) in [
        (
            json!({"address": "10.1.0"}),
            "ipam.addresses[0].address",
            "10.1.0",
        ),
        (
            json!({"address": "10.1.0.2"}),
            "ipam.addresses[0].address",
            "prefix",
        ),
        (
            json!({"address": "10.1.0.2/33"}),
            "ipam.addresses[0].address",
            "10.1.0.2/33",
        ),
        (json!({"address": ""}), "ipam.addresses[0].address", ""),
        (
            json!({"gateway": "10.1.0.1"}),
            "ipam.addresses[0]",
            "address",
        ),
        (
            json!({"address": "10.1.0.2/24", "gateway": "x"}),
            "ipam.addresses[0].gateway",
            "x",
        ),
        (json!("10.1.0.2/24"), "ipam.addresses[0]", ""),
    ] {
        let network = host.fixed().with("ipam.addresses", json!([address]));
        refused_by_both(&network, "").expect(7, &[key, word]);
        let status = network.with("cniVersion", "1.1.0");
        status.call("STATUS").error().expect(7, &[key, word]);
    }
}

#[test]
fn code_7_for_an_address_that_no_container_can_use() {
    let host = Host::new();
    let add = |key: &str, value: Value| host.fixed().with(key, value).call_for("ADD", "a");
    for (address, word) in [
        ("0.0.0.0/0", "unspecified"),
        ("10.1.0.0/24", "network itself"),
        ("10.1.0.255/24", "broadcast"),
        ("fd00:1::/64", "network itself"),
    ] {
        let error = add("ipam.addresses", json!([{"address": address}])).error();
        error.expect(7, &["ipam.addresses[0].address", address, word]);
        let error = add("runtimeConfig.ips", json!([address])).error();
        error.expect(7, &["runtimeConfig.ips[0]", address, word]);
    }
    for address in ["10.1.0.0/31", "10.1.0.0/32", "fd00:1::/127"] {
        add("runtimeConfig.ips", json!([address])).ok();
    }
}

#[test]
fn code_7_for_an_address_of_the_runtime_that_is_none() {
    let host = Host::new();
    for (key, at) in [
        ("args.cni.ips", "args.cni.ips[0]"),
        ("runtimeConfig.ips", "runtimeConfig.ips[0]"),
    ] {
        let network = host.fixed().with(key, json!(["10.1.0.2"]));
        refused_by_both(&network, "").expect(7, &[at, "10.1.0.2"]);
    }
}

#[test]
fn code_7_for_a_route_that_makes_no_sense() {
    let host = Host::new();
    for (route, word) in [
        (json!({"dst": "10.9.0.0/33"}), "10.9.0.0/33"),
        (json!({"dst": "10.9.0.0/16", "gw": "x"}), "x"),
    ] {
        let network = host.fixed().with("ipam.routes", json!([route]));
        refused_by_both(&network, "").expect(7, &["ipam.routes[0]", word]);
    }
    let without = host.fixed().without("ipam");
    refused_by_both(&without, "").expect(7, &["ipam"]);
}

#[test]
fn arguments_that_make_no_sense_are_refused_even_where_others_replace_them() {
    let host = Host::new();
    let replaced = host
        .fixed()
        .with("runtimeConfig.ips", json!(["10.4.0.2/24"]));
    for network in [host.fixed(), replaced] {
        for (args, code, word) in [
            ("IP=10.2.0.2", 7, "CNI_ARGS IP"),
            ("IP=10.2.0.2/24,", 7, "CNI_ARGS IP"),
            ("GATEWAY=10.2.0", 7, "CNI_ARGS GATEWAY"),
            ("PLUGH=1", 4, "PLUGH"),
            ("IP", 4, "IP"),
        ] {
            refused_by_both(&network, args).expect(code, &[word]);
        }
    }
}

#[test]
fn old_versions_hold_one_address_of_each_family() {
    let host = Host::new();
    for version in ["0.1.0", "0.2.0"] {
        let network = host.fixed().with("cniVersion", version);
        for args in ["IP=10.2.0.2/24", "IP=fd00:2::2/64"] {
            refused_by_both(&network, args).expect(7, &["ipam.addresses", version]);
        }
    }
}

#[test]
fn check_compares_gateways_with_the_result() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.fixed();
    let result = network.add(&a);
    let mut moved = result.clone();
    moved["ips"][1]["gateway"] = "fd00:1::9".into();
    let mut lost = result.clone();
    lost["ips"][0].as_object_mut().unwrap().remove("gateway");
    let mut fewer = result.clone();
    fewer["ips"].as_array_mut().unwrap().remove(0);
    for network in [network.clone(), network.by_reference()] {
        for passing in [&result, &fewer] {
            network.check(&a, passing).ok();
        }
        for failing in [&moved, &lost] {
            network.check(&a, failing).error();
        }
        network.on("CHECK", &a).error();
    }
    let refusal = network.check(&a, &moved).error();
    refusal.expect(100, &["fd00:1::2/64", "fd00:1::9", "fd00:1::1"]);
    network.check(&a, &lost).error().expect(100, &["none"]);
    network.on("CHECK", &a).error().expect(7, &["prevResult"]);
    let broken = network.with("ipam.addresses", json!([{"address": "x"}]));
    broken
        .check(&a, &result)
        .error()
        .expect(7, &["ipam.addresses[0]"]);
}

#[test]
fn del_and_gc_succeed_under_a_configuration_that_add_refuses() {
    let host = Host::new();
    let a = host.sandbox("a");
    for ipam in [json!({"type": "static", "addresses": 1}), json!(null)] {
        let broken = host.fixed().with("ipam", ipam);
        broken.on("ADD", &a).error().expect(7, &["ipam"]);
        broken.del(&a);
        assert_eq!(broken.on("DEL", &a).without("CNI_NETNS").ok(), Value::Null);
        assert_eq!(broken.gc(&[]).ok(), Value::Null);
    }
}

#[test]
fn status_needs_no_address() {
    let host = Host::new();
    let network = host.fixed().with("ipam", json!({"type": "static"}));
    let status = network.with("cniVersion", "1.1.0").call("STATUS");
    assert_eq!(status.ok(), Value::Null);
}

/// Returns a network with its own bridge that gives the pod an address of each family.
fn bridge(host: &Host, number: u8, pod: u8) -> Network<'_> {
    let addresses = json!([
        {"address": format!("10.{number}.0.{pod}/24"), "gateway": format!("10.{number}.0.1")},
        {"address": format!("fd00:{number}::{pod}/64"), "gateway": format!("fd00:{number}::1")},
    ]);
    let network = host.bridge().with("name", format!("net{number}"));
    let network = network.with("bridge", format!("br{number}"));
    network.with("ipam", json!({"type": "static", "addresses": addresses}))
}

#[test]
fn sandbox_with_an_interface_in_each_of_two_networks_reaches_both_and_leaves_nothing() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let mut attached = Vec::new();
    for (number, interface) in [(1, "eth0"), (2, "net1")] {
        for (pod, sandbox) in [(2, &a), (3, &b)] {
            let network = bridge(&host, number, pod);
            let result = network.on("ADD", sandbox).ifname(interface).ok();
            attached.push((network, sandbox, interface, result));
        }
    }
    for target in [
        "10.1.0.3",
        "fd00:1::3",
        "10.2.0.3",
        "fd00:2::3",
        "10.2.0.1",
        "fd00:1::1",
    ] {
        assert!(a.pings(target), "{target}");
    }
    for (network, sandbox, interface, result) in &attached {
        network.check(sandbox, result).ifname(interface).ok();
    }
    for (network, sandbox, interface, result) in attached {
        let network = network.with("prevResult", result);
        network.on("DEL", sandbox).ifname(interface).ok();
    }
    assert_eq!(
        (a.links(), b.links()),
        (vec!["lo".into()], vec!["lo".into()])
    );
    for bridge in ["br1", "br2"] {
        host.ip(&format!("link delete {bridge}"));
    }
    assert_eq!(host.links(), ["lo"]);
}

#[test]
fn example_gives_the_addresses_that_the_runtime_names() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let example = Example::list(&host, "static.conflist");
    let add = |pod, ips: Value| {
        let add = example.on("add", pod);
        add.env("CAP_ARGS", json!({"ips": ips}).to_string()).run()
    };
    let result = add(&a, json!(["10.80.8.7/24", "fd00:80:0:8::7/64"])).ok();
    add(&b, json!(["10.80.8.8/24", "fd00:80:0:8::8/64"])).ok();
    assert_eq!(a.addresses("eth0"), ["10.80.8.7/24", "fd00:80:0:8::7/64"]);
    assert_eq!(a.default_gateways(), ["10.80.8.1", "fd00:80:0:8::1"]);
    assert_eq!(result["dns"]["search"], json!(["cluster.local"]));
    assert!(a.pings("10.80.8.8") && a.pings("fd00:80:0:8::8") && a.pings("10.80.8.1"));
    let refusal = add(&host.sandbox("c"), json!([]));
    assert!(!refusal.status.success(), "{refusal:?}");
    for pod in [&a, &b] {
        example.on("check", pod).ok();
        example.on("del", pod).ok();
        assert_eq!(pod.links(), ["lo"]);
    }
}
