//! bridge CHECK after permitted changes by later plugins of the chain, other networks and the
//! operator.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// Runs a chained plugin of the reference and returns its result.
fn chained(
    host: &Host,
    plugin: &str,
    (sandbox, result): (&Sandbox, &Value),
    keys: &Value,
) -> Value {
    let mut network = host.bridge().by_reference().without("ipam");
    network = network
        .with("type", plugin)
        .with("prevResult", result.clone());
    for (key, value) in keys.as_object().unwrap() {
        network = network.with(key, value.clone());
    }
    network.add(sandbox)
}

fn with_default_routes(host: &Host) -> Network<'_> {
    let network = host.bridge().with("cniVersion", "1.0.0");
    network.with("isDefaultGateway", true)
}

/// Checks that CHECK passes, in the version of the result.
#[track_caller]
fn passes(network: &Network<'_>, sandbox: &Sandbox, result: &Value) {
    assert_eq!(network.check(sandbox, result).ok(), Value::Null);
}

#[test]
fn tuning_may_change_mtu_mac_and_promiscuous_mode() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (version, mac) in [
        ("0.4.0", "02:00:00:00:00:41"),
        ("1.0.0", "02:00:00:00:00:42"),
    ] {
        let network = with_default_routes(&host).with("cniVersion", version);
        let result = network.add(&a);
        let keys = json!({"cniVersion": version, "mtu": 1400, "mac": mac, "promisc": true});
        let tuned = chained(&host, "tuning", (&a, &result), &keys);
        assert_eq!(
            (&a.link("eth0")["mtu"], a.mac("eth0").as_str()),
            (&json!(1400), mac)
        );
        passes(&network, &a, &tuned);
        network.del(&a);
    }
    // Debian's version of the reference's tuning lacks 1.1.0, whose results contain MTUs.
    let network = with_default_routes(&host).with("cniVersion", "1.1.0");
    let result = network.add(&a);
    a.ip("link set eth0 mtu 1400");
    passes(&network, &a, &result);
}

#[test]
fn sbr_may_move_the_routes_to_another_table() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge_v4().with("isDefaultGateway", true);
    let result = network.add(&a);
    let moved = chained(&host, "sbr", (&a, &result), &json!({}));
    assert_eq!(a.default_gateways(), Vec::<String>::new());
    assert!(a.ip("route show table 100").contains("default"));
    passes(&network, &a, &moved);
}

#[test]
fn default_route_that_a_chained_plugin_took_from_the_result_is_not_missed() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = with_default_routes(&host);
    let mut result = network.add(&a);
    // route-override with flushroutes does the same.
    a.ip("route flush default");
    a.ip("-6 route flush default");
    result["routes"] = json!([]);
    passes(&network, &a, &result);
}

#[test]
fn addresses_of_another_plugins_interface_are_not_missed() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge();
    let mut result = network.add(&a);
    let sandbox = result["interfaces"][2]["sandbox"].clone();
    let interfaces = result["interfaces"].as_array_mut().unwrap();
    interfaces.push(json!({"name": "net1", "sandbox": sandbox}));
    let ips = result["ips"].as_array_mut().unwrap();
    ips.push(json!({"address": "10.66.0.2/24", "gateway": "10.66.0.1", "interface": 3}));
    passes(&network, &a, &result);
}

#[test]
fn two_interfaces_may_have_routes_to_the_same_destination() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = |number: u8| {
        let ranges = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/64")];
        let ranges = json!(ranges.map(|subnet| json!([{"subnet": subnet}])));
        let network = with_default_routes(&host).with("ipam.ranges", ranges);
        let network = network.with("name", format!("n{number}"));
        network.with("bridge", format!("cni{number}"))
    };
    let attached = [(1, "eth0"), (2, "net1")].map(|(number, interface)| {
        let network = network(number);
        let result = network.on("ADD", &a).ifname(interface).ok();
        (network, interface, result)
    });
    let routes = a.ip("-6 route show default");
    for route in [
        "via fd00:1::1 dev eth0 metric 1024",
        "via fd00:2::1 dev net1 metric 1025",
    ] {
        assert!(routes.contains(route), "{routes}");
    }
    for (network, interface, result) in &attached {
        let check = network.check(&a, result).ifname(interface);
        assert_eq!(check.ok(), Value::Null);
    }
    a.ip("-6 route delete default via fd00:2::1 dev net1");
    let (network, interface, result) = &attached[1];
    let refusal = network.check(&a, result).ifname(interface).error();
    assert!(refusal.mentions("::/0"), "{refusal:?}");
}

#[test]
fn routes_with_host_bits_and_the_numbers_for_defaults_are_found() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("cniVersion", "1.1.0");
    let network = network.with(
        "ipam.routes",
        json!([
            {"dst": "10.9.1.2/16", "priority": 0, "table": 0},
            {"dst": "fd00:9::1/48", "priority": 0, "table": 0},
            {"dst": "10.8.0.0/16", "table": 254},
        ]),
    );
    let mut result = network.add(&a);
    passes(&network, &a, &result);
    // An IPAM plugin may report routes as they were written, with host bits.
    result["routes"][0]["dst"] = json!("10.9.1.2/16");
    result["routes"][1]["dst"] = json!("fd00:9::1/48");
    passes(&network, &a, &result);
    a.ip("route delete 10.9.0.0/16");
    let refusal = network.check(&a, &result).error();
    assert!(refusal.mentions("10.9"), "{refusal:?}");
}

#[test]
fn pods_pass_after_the_mtu_was_lowered() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = |mtu: u32| host.bridge().with("cniVersion", "1.1.0").with("mtu", mtu);
    let old = network(1500).add(&a);
    let new = network(1400).add(&b);
    for result in [&old, &new] {
        for interface in result["interfaces"].as_array().unwrap() {
            assert!(interface["mtu"].is_u64(), "{interface}");
        }
    }
    let of = |index: usize| new["interfaces"][index]["mtu"].clone();
    assert_eq!(host.link("cni0")["mtu"], 1400, "the kernel lowers it");
    assert_eq!([of(0), of(1), of(2)], [1400, 1400, 1400]);
    passes(&network(1400), &b, &new);
    passes(&network(1400), &a, &old);
    passes(&network(1500), &a, &old);
}

#[test]
fn result_of_another_sandbox_is_refused() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge();
    let result = network.add(&a);
    for other in [b.path().to_str().unwrap(), "/run/netns/never-was"] {
        let mut foreign = result.clone();
        foreign["interfaces"][2]["sandbox"] = other.into();
        let refusal = network.check(&a, &foreign).error();
        assert!(refusal.mentions(other), "{refusal:?}");
    }
    // Another path to the same sandbox is not another sandbox.
    let inhabitant = a.inhabitant();
    let check = network.check(&a, &result).netns(inhabitant.netns());
    assert_eq!(check.ok(), Value::Null);
}

/// ADD never turns the promiscuous mode off: another network may need it.
#[test]
fn promiscuous_mode_may_be_on_without_being_asked_but_not_off() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let asked = host.bridge().with("promiscMode", true);
    let asked_result = asked.add(&a);
    let network = host.bridge();
    let result = network.add(&b);
    passes(&network, &b, &result);
    passes(&asked, &a, &asked_result);
    host.ip("link set cni0 promisc off");
    passes(&network, &b, &result);
    let refusal = asked.check(&a, &asked_result).error();
    assert!(refusal.mentions("not promiscuous"), "{refusal:?}");
}

/// The kernel forwards with any value but 0, and ADD keeps the value.
#[test]
fn forwarding_may_have_another_value_than_1() {
    let host = Host::new();
    let a = host.sandbox("a");
    let sysctls = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
    for sysctl in sysctls {
        host.set_sysctl(sysctl, "2");
    }
    let network = host.bridge();
    let result = network.add(&a);
    passes(&network, &a, &result);
    for sysctl in sysctls {
        host.set_sysctl(sysctl, "0");
        let refusal = network.check(&a, &result).error();
        assert!(refusal.mentions(&sysctl.replace('/', ".")), "{refusal:?}");
        host.set_sysctl(sysctl, "1");
    }
}

#[test]
fn reload_leaves_addresses_of_other_interfaces_alone() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("ipMasq", true);
    let mut result = network.add(&a);
    let there = host.run("nft", &["list", "ruleset"]);
    let other = json!({"name": "net1", "sandbox": a.path()});
    result["interfaces"].as_array_mut().unwrap().push(other);
    let address = json!({"address": "10.99.0.5/24", "interface": 3});
    result["ips"].as_array_mut().unwrap().push(address);
    passes(&network, &a, &result);
    let reload = network.clone().with("prevResult", result.clone());
    reload.on("RELOAD", &a).ok();
    assert_eq!(host.run("nft", &["list", "ruleset"]), there);
    passes(&network, &a, &result);
}
