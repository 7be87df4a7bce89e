//! bridge: isolated ports, containers without addresses, and full bridges.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// Returns a switch without addresses.
fn layer2(host: &Host) -> Network<'_> {
    host.bridge().without("ipam").with("isGateway", false)
}

#[test]
fn isolated_ports_reach_the_host_and_not_each_other() {
    let host = Host::new();
    let [a, b, open] = ["a", "b", "open"].map(|name| host.sandbox(name));
    let isolated = host.bridge().with("portIsolation", true);
    let result = isolated.add(&a);
    isolated.add(&b);
    host.bridge().add(&open);
    for (from, to, expected) in [
        (&a, "10.1.0.1", true),
        (&a, "fd00:1::1", true),
        (&a, "10.1.0.3", false),
        (&b, "fd00:1::2", false),
        (&a, "10.1.0.4", true),
        (&open, "10.1.0.3", true),
    ] {
        assert_eq!(from.pings(to), expected, "{} to {to}", from.name());
    }
    assert_eq!(isolated.check(&a, &result).ok(), Value::Null);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    host.run("bridge", &["link", "set", "dev", port, "isolated", "off"]);
    let refusal = isolated.check(&a, &result).error();
    assert!(refusal.mentions("isolation"), "{refusal:?}");
}

#[test]
fn without_ipam_the_container_has_a_link_and_the_rest_is_its_own() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    for ipam in [Value::Null, json!({}), json!({"type": ""})] {
        let before = host.snapshot();
        let network = layer2(&host).with("ipam", ipam);
        let result = network.add(&a);
        network.add(&b);
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 3);
        assert!(
            result.get("ips").is_none_or(|ips| *ips == json!([])),
            "{result}"
        );
        assert_eq!(network.check(&a, &result).ok(), Value::Null);
        for (sandbox, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
            sandbox.ip(&format!("address add {address} dev eth0"));
        }
        assert!(a.pings("192.0.2.2"));
        for sandbox in [&a, &b] {
            network.del(sandbox);
            assert_eq!(sandbox.links(), ["lo"]);
        }
        host.ip("link delete cni0");
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn gateway_without_ipam_is_reported_to_have_no_effect() {
    let host = Host::new();
    let a = host.sandbox("a");
    let outcome = layer2(&host).with("isGateway", true).on("ADD", &a).run();
    outcome.ok();
    assert!(outcome.stderr.contains("isGateway"), "{outcome:?}");
}

#[test]
fn disabled_container_interface_is_there_and_down() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = layer2(&host).with("disableContainerInterface", true);
    let result = network.add(&a);
    let is_up = |sandbox: &Sandbox| {
        let link = sandbox.link("eth0");
        let flags = link["flags"].as_array().unwrap().clone();
        flags.contains(&json!("UP"))
    };
    assert!(!is_up(&a));
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    a.ip("link set eth0 up");
    let refusal = network.check(&a, &result).error();
    assert!(refusal.mentions("eth0 in the sandbox is up"), "{refusal:?}");
    layer2(&host).add(&b);
    for (sandbox, address) in [(&a, "192.0.2.1/24"), (&b, "192.0.2.2/24")] {
        sandbox.ip(&format!("address add {address} dev eth0"));
    }
    assert!(
        a.pings("192.0.2.2"),
        "the port has joined before it comes up"
    );
    network.del(&a);
    network.del(&b);
    assert_eq!(host.links(), ["cni0", "lo"]);
}

#[test]
fn disabled_container_interface_takes_no_addresses() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("disableContainerInterface", true);
    let before = host.snapshot();
    let refusal = network.on("ADD", &a).error();
    refusal.expect(7, &["disableContainerInterface", "ipam"]);
    host.snapshot().assert_same_as(&before);
    network.del(&a);
}

#[test]
fn bridge_makes_the_first_interface_of_a_chain() {
    let host = Host::new();
    let a = host.sandbox("a");
    let made_before = |name: &str| {
        let interface = json!({"name": name, "sandbox": a.path()});
        let result = json!({"cniVersion": "1.0.0", "interfaces": [interface]});
        host.bridge().with("prevResult", result)
    };
    let before = host.snapshot();
    let refusal = made_before("net1").on("ADD", &a).error();
    refusal.expect(7, &["prevResult", "net1", "first of its chain"]);
    host.snapshot().assert_same_as(&before);
    made_before("lo").add(&a);
}

#[test]
fn full_bridge_is_an_error_with_advice() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge_v4();
    let newest = network.clone().with("cniVersion", "1.1.0");
    network.add(&a);
    occupy_ports(&host, 0..920);
    let near = newest.call("STATUS").run();
    near.ok();
    assert!(
        near.stderr.contains("921 of at most 1023 ports"),
        "{near:?}"
    );
    occupy_ports(&host, 920..1022);
    let before = host.snapshot();
    let refusal = network.on("ADD", &b).error();
    refusal.expect(100, &["cni0", "1023 ports", "another bridge"]);
    host.snapshot().assert_same_as(&before);
    let full = newest.call("STATUS").run();
    full.ok();
    assert!(full.stderr.contains("1023 ports"), "{full:?}");
    let failing = newest.with("statusWhenFull", "fail");
    failing.call("STATUS").error().expect(50, &["cni0", "1023"]);
    network.del(&a);
    network.add(&b);
}

/// Creates pairs with one end as a port of cni0.
fn occupy_ports(host: &Host, numbers: std::ops::Range<u32>) {
    let mut batch = String::new();
    for number in numbers {
        writeln!(
            batch,
            "link add p{number} master cni0 type veth peer q{number}"
        )
        .unwrap();
    }
    let file = host.dir().join("batch");
    fs::write(&file, batch).unwrap();
    host.ip(&format!("-batch {}", file.display()));
}
