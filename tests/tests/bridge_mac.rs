//! bridge: MACs, set by the message that creates a link and never changed.

use serde_json::{Value, json};
use tests::{Host, Place};

/// `addr_assign_type` of a link: 3 means that its creator set the MAC. Programs such as udev
/// replace only random ones.
const CHOSEN: &str = "3";

fn host_link(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}

#[test]
fn the_containers_mac_follows_from_its_ipv4_address() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge().add(&a);
    assert_eq!(a.addresses("eth0")[0], "10.1.0.2/24");
    assert_eq!(a.mac("eth0"), "0a:58:0a:01:00:02");
    assert_eq!(result["interfaces"][2]["mac"], "0a:58:0a:01:00:02");
}

#[test]
fn the_containers_mac_follows_from_its_ipv6_address_where_there_is_no_other() {
    let host = Host::new();
    let ranges = json!([[{"subnet": "fd00:1::/64"}]]);
    let network = host.bridge().with("ipam.ranges", ranges);
    let fixed = network
        .clone()
        .with("runtimeConfig.ips", json!(["fd00:1::9"]));
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    fixed.add(&a);
    let first = a.mac("eth0");
    let byte = u8::from_str_radix(&first[..2], 16).unwrap();
    assert_eq!(
        byte & 0b11,
        0b10,
        "unicast and locally administered: {first}"
    );
    fixed.del(&a);
    fixed.add(&b);
    assert_eq!(b.mac("eth0"), first, "the same address has the same MAC");
    network.add(&c);
    assert_ne!(c.mac("eth0"), first);
    assert!(c.pings("fd00:1::9"));
}

#[test]
fn an_address_that_is_leased_again_is_reached_at_once() {
    let host = Host::new();
    let network = host
        .bridge()
        .with("runtimeConfig.ips", json!(["10.1.0.9", "fd00:1::9"]));
    for name in ["a", "b", "c"] {
        let sandbox = host.sandbox(name);
        network.add(&sandbox);
        assert!(host.pings("10.1.0.9") && host.pings("fd00:1::9"), "{name}");
        network.del(&sandbox);
    }
}

#[test]
fn a_mac_is_asked_for_by_the_runtime_then_by_args_then_by_the_environment() {
    let host = Host::new();
    let network = host.bridge_v4();
    let conventional = network.clone().with("args.cni.mac", "02:00:00:00:00:02");
    let runtime = conventional
        .clone()
        .with("runtimeConfig.mac", "02:00:00:00:00:01");
    for (name, network, mac) in [
        ("a", runtime, "02:00:00:00:00:01"),
        ("b", conventional, "02:00:00:00:00:02"),
        ("c", network, "02:00:00:00:00:03"),
    ] {
        let sandbox = host.sandbox(name);
        let result = network
            .on("ADD", &sandbox)
            .args("IgnoreUnknown=1;MAC=02:00:00:00:00:03")
            .ok();
        assert_eq!(sandbox.mac("eth0"), mac);
        assert_eq!(result["interfaces"][2]["mac"], mac);
        assert!(sandbox.pings("10.1.0.1"));
    }
}

#[test]
fn a_mac_is_asked_for_in_any_notation_of_go() {
    let host = Host::new();
    let a = host.sandbox("a");
    for mac in ["02-11-22-33-44-55", "0211.2233.4455"] {
        let network = host.bridge_v4();
        network.on("ADD", &a).args(&format!("MAC={mac}")).ok();
        assert_eq!(a.mac("eth0"), "02:11:22:33:44:55");
        network.del(&a);
    }
}

#[test]
fn a_mac_that_is_none_is_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    let before = host.snapshot();
    for mac in [
        "02:00:00:00:00",
        "x",
        "01:00:5e:00:00:01",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "0211.2233",
    ] {
        for key in ["runtimeConfig.mac", "args.cni.mac"] {
            let asked = host.bridge().with(key, mac);
            asked.on("ADD", &a).error().expect(7, &[key, mac]);
        }
        let refusal = host
            .bridge()
            .on("ADD", &a)
            .args(&format!("MAC={mac}"))
            .error();
        assert!(
            refusal.mentions("MAC") && refusal.mentions(mac),
            "{refusal:?}"
        );
    }
    host.snapshot().assert_same_as(&before);
}

#[test]
fn the_bridges_mac_never_changes_as_ports_come_and_go() {
    let host = Host::new();
    let network = host.bridge();
    let low = network
        .clone()
        .with("runtimeConfig.mac", "02:00:00:00:00:01");
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    network.add(&a);
    let mac = host.mac("cni0");
    low.add(&b);
    assert_eq!(host.mac("cni0"), mac);
    network.del(&a);
    assert_eq!(host.mac("cni0"), mac);
    network.del(&b);
    assert_eq!(host.mac("cni0"), mac, "without any port");
    network.add(&c);
    assert_eq!(host.mac("cni0"), mac);
}

#[test]
fn every_link_is_made_with_its_mac() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge().add(&a);
    assert_eq!(host.addr_assign_type("cni0"), CHOSEN);
    assert_eq!(host.addr_assign_type(host_link(&result)), CHOSEN);
    assert_eq!(a.addr_assign_type("eth0"), CHOSEN);
}

#[test]
fn two_bridges_and_two_host_links_have_macs_of_their_own() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let first = host.bridge().add(&a);
    let second = host.bridge().with("name", "other").with("bridge", "cni1");
    let second = second
        .with("ipam.ranges", json!([[{"subnet": "10.2.0.0/24"}]]))
        .add(&b);
    assert_ne!(host.mac("cni0"), host.mac("cni1"));
    assert_ne!(host.mac(host_link(&first)), host.mac(host_link(&second)));
}
