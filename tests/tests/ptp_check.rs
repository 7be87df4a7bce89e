//! ptp CHECK and STATUS: what each finds, and what it accepts of later plugins.

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox};

fn network(host: &Host) -> tests::Network<'_> {
    host.ptp().with("cniVersion", "1.1.0").with("ipMasq", true)
}

/// Checks that CHECK fails after `change` and mentions `word`. `change` gets the host, the sandbox
/// and the name of the host's end.
#[track_caller]
fn finds(word: &str, change: impl Fn(&Host, &Sandbox, &str)) {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = network(&host).add(&a);
    let check = network(&host).check(&a, &result);
    assert_eq!(check.ok(), Value::Null);
    change(&host, &a, result["interfaces"][0]["name"].as_str().unwrap());
    let before = host.snapshot();
    let refusal = check.error();
    assert!(
        refusal.mentions(word),
        "{word:?} is not mentioned: {refusal:?}"
    );
    host.snapshot().assert_same_as(&before);
}

#[test]
fn check_succeeds_in_every_version_that_has_it() {
    let host = Host::new();
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let a = host.sandbox(version);
        let network = network(&host).with("cniVersion", version);
        let result = network.add(&a);
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        network.del(&a);
    }
}

#[test]
fn check_finds_a_host_that_no_longer_routes_to_the_pod() {
    finds("10.1.0.2", |host, _, end| {
        host.ip(&format!("route delete 10.1.0.2/32 dev {end}"));
    });
    finds("fd00:1::2", |host, _, end| {
        host.ip(&format!("route delete fd00:1::2/128 dev {end}"));
    });
    finds("10.1.0.2", |host, _, _| {
        host.ip("route add blackhole 10.1.0.2/32 table 99");
        host.ip("rule add to 10.1.0.2 lookup 99 priority 1");
    });
}

#[test]
fn check_finds_a_gateway_address_that_the_host_end_lost() {
    finds("10.1.0.1", |host, _, end| {
        host.ip(&format!("address delete 10.1.0.1/32 dev {end}"));
    });
    finds("fd00:1::1", |host, _, end| {
        host.ip(&format!("address delete fd00:1::1/128 dev {end}"));
    });
}

#[test]
fn check_finds_missing_addresses_and_routes_of_the_pod() {
    finds("10.1.0.2/24", |_, a, _| {
        a.ip("address delete 10.1.0.2/24 dev eth0");
    });
    finds("10.1.0.1/32", |_, a, _| {
        a.ip("route delete 10.1.0.1/32");
    });
    finds("10.1.0.0/24", |_, a, _| {
        a.ip("route delete 10.1.0.0/24");
    });
    finds("fd00:1::/64", |_, a, _| {
        a.ip("route delete fd00:1::/64");
    });
    finds("::/0", |_, a, _| {
        a.ip("-6 route delete default");
    });
}

#[test]
fn check_finds_links_that_are_down_and_forwarding_that_is_off() {
    finds("is down", |host, _, end| {
        host.ip(&format!("link set {end} down"));
    });
    finds("eth0", |_, a, _| {
        a.ip("link set eth0 down");
    });
    finds("net.ipv4.ip_forward", |host, _, _| {
        host.set_sysctl("net/ipv4/ip_forward", "0");
    });
    finds("net.ipv6.conf.all.forwarding", |host, _, _| {
        host.set_sysctl("net/ipv6/conf/all/forwarding", "0");
    });
}

#[test]
fn check_finds_a_tag_and_elements_that_are_gone() {
    finds("cni:pods/a/eth0", |host, _, end| {
        host.ip(&format!("link set {end} alias someone"));
    });
    finds("pods4", |host, _, _| {
        host.run("nft", &["flush", "map", "inet", "cni-masquerade", "pods4"]);
    });
}

#[test]
fn check_accepts_what_later_plugins_and_operators_change() {
    let host = Host::new();
    let a = host.sandbox("a");
    let mut result = network(&host).add(&a);
    let end = result["interfaces"][0]["name"].as_str().unwrap().to_owned();
    a.ip("link set eth0 mtu 1300");
    a.ip("address add 10.9.0.2/24 dev eth0");
    host.ip(&format!("link set {end} mtu 1300"));
    host.ip(&format!("address add 10.9.0.1/32 dev {end}"));
    result["routes"] = json!([]);
    a.ip("route delete default");
    assert_eq!(network(&host).check(&a, &result).ok(), Value::Null);
}

#[test]
fn check_needs_the_result() {
    let host = Host::new();
    let a = host.sandbox("a");
    network(&host).add(&a);
    let refusal = network(&host).on("CHECK", &a).error();
    refusal.expect(7, &["prevResult"]);
}

#[test]
fn status_asks_the_ipam_plugin_and_the_kernel() {
    let host = Host::new();
    assert_eq!(network(&host).call("STATUS").ok(), Value::Null);
    let error = json!({"cniVersion": "1.1.0", "code": 50, "msg": "no addresses"});
    host.script("full", &format!("echo '{error}'; exit 1"));
    let full = network(&host).with("ipam.type", "full");
    full.call("STATUS").error().expect(50, &["no addresses"]);
    let none = network(&host).without("ipam");
    none.call("STATUS").error().expect(7, &["ipam"]);
}
