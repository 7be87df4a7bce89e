//! bridge: rejected configurations, their codes, and that nothing is left.

use std::process::Command;

use serde_json::json;
use tests::{Host, Network, Place as _, Sandbox};

/// Checks that ADD is refused with `code` and these words, and leaves nothing.
#[track_caller]
fn refused(host: &Host, network: &Network<'_>, sandbox: &Sandbox, expected: (u64, &[&str])) {
    let before = host.snapshot();
    network
        .on("ADD", sandbox)
        .error()
        .expect(expected.0, expected.1);
    host.snapshot().assert_same_as(&before);
    assert_eq!(sandbox.links(), ["lo"]);
}

#[test]
fn a_key_that_asks_for_nothing_passes() {
    let host = Host::new();
    let a = host.sandbox("a");
    let mut network = host.bridge();
    for (key, value) in [
        ("ipMasq", json!(false)),
        ("vlan", json!(0)),
        ("vlanTrunk", json!([])),
        ("macspoofchk", json!(false)),
        ("portIsolation", json!(false)),
        ("disableContainerInterface", json!(false)),
    ] {
        network = network.with(key, value);
    }
    network.add(&a);
    assert!(a.pings("10.1.0.1"));
}

#[test]
fn code_7_for_what_is_no_vlan() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (key, value, word) in [
        ("vlan", json!(4095), "vlan"),
        ("vlan", json!(-1), "vlan"),
        ("vlanTrunk", json!([{"id": 0}]), "vlanTrunk[0].id"),
        ("vlanTrunk", json!([{"minID": 5}]), "vlanTrunk[0]"),
    ] {
        refused(&host, &host.bridge().with(key, value), &a, (7, &[word]));
    }
    let long = host
        .bridge()
        .with("bridge", "a-long-bridge")
        .with("vlan", 100);
    refused(&host, &long, &a, (7, &["a-long-bridge.100"]));
}

#[test]
fn vlan_without_kernel_support_is_refused_with_the_reason() {
    let host = Host::new();
    let a = host.sandbox("a");
    let probe = "link add probe type bridge vlan_filtering 1";
    let made = Command::new("ip").args(probe.split(' ')).output().unwrap();
    let filters = made.status.success();
    let outcome = host.bridge().with("vlan", 100).on("ADD", &a).run();
    if filters {
        outcome.ok();
        return;
    }
    let words = &["vlan", "CONFIG_BRIDGE_VLAN_FILTERING"];
    outcome.error().expect(2, words);
    assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
    assert_eq!(host.links(), ["lo"]);
    // A bridge that was there stays.
    host.ip("link add cni0 type bridge");
    let trunk = host.bridge().with("vlanTrunk", json!([{"id": 7}]));
    let refused = trunk.on("ADD", &a).error();
    refused.expect(2, &["vlanTrunk", "CONFIG_BRIDGE_VLAN_FILTERING"]);
    assert_eq!(host.links(), ["cni0", "lo"]);
}

#[test]
fn del_succeeds_under_a_configuration_that_add_refuses() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (key, value) in [
        ("ipMasqBackend", json!("ipvs")),
        ("vlan", json!(100)),
        ("mtu", json!(70_000)),
        ("promiscMode", json!(true)),
    ] {
        let network = host.bridge().with("hairpinMode", true);
        network.add(&a);
        network.with(key, value).del(&a);
        assert!(
            !a.has_link("eth0") && host.leases("pods").is_empty(),
            "{key}"
        );
        assert_eq!(host.links(), ["cni0", "lo"]);
    }
}

#[test]
fn code_7_for_keys_that_exclude_each_other() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host
        .bridge()
        .with("hairpinMode", true)
        .with("promiscMode", true);
    refused(&host, &network, &a, (7, &["hairpinMode", "promiscMode"]));
}

#[test]
fn code_7_for_a_value_of_the_wrong_type() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (key, value) in [
        ("isGateway", json!("true")),
        ("bridge", json!(7)),
        ("hairpinMode", json!(1)),
        ("dns", json!([])),
        ("ipam", json!("host-local")),
        ("vlan", json!("100")),
        ("bridgeNfCall", json!("no")),
    ] {
        refused(&host, &host.bridge().with(key, value), &a, (7, &[key]));
    }
}

#[test]
fn code_7_for_a_bridge_that_cannot_be_called_so() {
    let host = Host::new();
    let a = host.sandbox("a");
    for name in ["sixteen-letters.", "a/b", ".", "a b", "a:b", "tb%d", "%"] {
        refused(
            &host,
            &host.bridge().with("bridge", name),
            &a,
            (7, &["bridge", name]),
        );
    }
}

#[test]
fn a_delegate_is_a_bare_file_name() {
    let host = Host::new();
    let a = host.sandbox("a");
    for name in ["../host-local", "/usr/lib/cni/host-local", "a/b", "..", "."] {
        refused(
            &host,
            &host.bridge().with("ipam.type", name),
            &a,
            (7, &["ipam.type", name]),
        );
    }
    refused(
        &host,
        &host.bridge().with("ipam.type", 1),
        &a,
        (7, &["ipam"]),
    );
}

#[test]
fn a_delegate_that_is_nowhere_is_named_with_the_directories() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("ipam.type", "plugh");
    let add = network.on("ADD", &a).env("CNI_PATH", "/nowhere:/run/test");
    add.error().expect(7, &["plugh", "/nowhere", "/run/test"]);
}

#[test]
fn a_link_that_is_no_bridge_is_not_taken_for_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ip("link add cni0 type veth peer name cni0-peer");
    let before = host.snapshot();
    let refusal = host.bridge().on("ADD", &a).error();
    assert!(refusal.mentions("cni0"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
}

#[test]
fn a_bridge_with_another_address_is_kept_unless_forced() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge_v4().add(&a);
    let moved = host.bridge_v4().with("name", "moved");
    let moved = moved.with(
        "ipam.ranges",
        json!([[{"subnet": "10.1.0.0/16", "gateway": "10.1.7.1"}]]),
    );
    let before = host.snapshot();
    let refusal = moved.on("ADD", &b).error();
    assert!(refusal.mentions("10.1.0.1/24"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    moved.with("forceAddress", true).add(&b);
    assert_eq!(host.addresses("cni0"), ["10.1.7.1/16"]);
    assert!(b.pings("10.1.7.1"));
}

#[test]
fn a_bridge_that_was_there_keeps_its_mac_mtu_and_other_addresses() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ip("link add cni0 address 02:00:00:00:00:77 mtu 1400 type bridge");
    host.ip("link set cni0 up");
    host.ip("address add 2001:db8::1/64 dev cni0");
    host.bridge().with("mtu", 1300).add(&a);
    assert_eq!(host.mac("cni0"), "02:00:00:00:00:77");
    assert!(
        host.addresses("cni0")
            .contains(&"2001:db8::1/64".to_owned())
    );
    assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
}
