//! bridge: VLANs. The tests need a kernel with VLAN filtering and 802.1q.

use serde_json::{Value, json};
use tests::vlans::{access, other};
use tests::{Capture, Example, Host, Place as _, Sandbox};

/// Adds an address of a network without a router to eth0, so only frames decide.
fn join_lan(sandbox: &Sandbox, link: &str, number: u8) {
    sandbox.ip(&format!("address add 192.0.2.{number}/24 dev {link}"));
}

#[test]
fn containers_of_different_vlans_do_not_hear_each_other() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    access(&host).add(&a);
    other(&host, 200).add(&b);
    let third = other(&host, 100).with("name", "third");
    third.with("isGateway", false).add(&c);
    for (sandbox, number) in [(&a, 1), (&b, 2), (&c, 3)] {
        join_lan(sandbox, "eth0", number);
    }
    assert!(!a.pings("192.0.2.2"), "VLAN 100 to 200");
    assert!(a.pings("192.0.2.3"), "VLAN 100 to 100");
}

#[test]
fn trunk_carries_what_it_names_with_tags() {
    let host = Host::new();
    let [trunk, a] = ["trunk", "a"].map(|name| host.sandbox(name));
    let entries = json!([{"id": 100}, {"minID": 200, "maxID": 202}]);
    let network = host.bridge().without("ipam").with("isGateway", false);
    let network = network.with("vlanTrunk", entries);
    let result = network.add(&trunk);
    access(&host).add(&a);
    join_lan(&a, "eth0", 1);
    // Otherwise every link of the sandbox answers for all its addresses.
    trunk.set_sysctl("net/ipv4/conf/all/arp_ignore", "1");
    for (vlan, number) in [(100, 2), (300, 3)] {
        trunk.ip(&format!(
            "link add link eth0 name eth0.{vlan} type vlan id {vlan}"
        ));
        trunk.ip(&format!("link set eth0.{vlan} up"));
        join_lan(&trunk, &format!("eth0.{vlan}"), number);
    }
    assert!(a.pings("192.0.2.2"));
    assert!(!a.pings("192.0.2.3"));
    let port = &result["interfaces"][1]["name"];
    let carried = host.vlans(port.as_str().unwrap()).join(",");
    for vlan in ["100", "200", "201", "202"] {
        assert!(carried.contains(vlan), "{carried}");
    }
    assert_eq!(network.check(&trunk, &result).ok(), Value::Null);
    let port = port.as_str().unwrap();
    host.run("bridge", &["vlan", "delete", "dev", port, "vid", "201"]);
    let refusal = network.check(&trunk, &result).error();
    assert!(refusal.mentions("VLANs 200 to 202"), "{refusal:?}");
}

#[test]
fn trunk_has_the_untagged_vlan_that_vlan_names_or_the_first() {
    let host = Host::new();
    let [native, plain, a, b] = ["native", "plain", "a", "b"].map(|name| host.sandbox(name));
    let trunk = json!([{"minID": 99, "maxID": 101}]);
    let network = access(&host).with("vlanTrunk", trunk.clone());
    let result = network.add(&native);
    let first = host.bridge().with("name", "first");
    let ranges = json!([[{"subnet": "10.3.0.0/24"}]]);
    let first = first.with("ipam.ranges", ranges);
    let former = first.clone().with("preserveDefaultVlan", true);
    let in_first = first.clone().with("vlanTrunk", trunk.clone());
    let in_first = in_first.with("preserveDefaultVlan", false);
    let second = in_first.add(&plain);
    access(&host).add(&a);
    first.add(&b);
    let port = |result: &Value| host.vlans(result["interfaces"][1]["name"].as_str().unwrap());
    assert_eq!(port(&result), ["99", "100 PVID Egress Untagged", "101"]);
    let untagged = "1 PVID Egress Untagged";
    assert_eq!(port(&second), [untagged, "99", "100", "101"]);
    assert!(native.pings("10.1.0.1") && native.pings("10.1.0.3"));
    assert!(plain.pings("10.3.0.1") && plain.pings("10.3.0.3"));
    assert_eq!(network.check(&native, &result).ok(), Value::Null);
    assert_eq!(in_first.check(&plain, &second).ok(), Value::Null);
    let c = host.sandbox("c");
    let third = former.with("vlanTrunk", trunk).add(&c);
    assert_eq!(port(&third), port(&second));
    assert_eq!(in_first.check(&c, &third).ok(), Value::Null);
}

#[test]
fn port_stays_in_the_default_vlan_unless_it_shall_leave_it() {
    let host = Host::new();
    let [keeps, leaves, plain] = ["keeps", "leaves", "plain"].map(|name| host.sandbox(name));
    let network = access(&host);
    let kept = network.clone().with("preserveDefaultVlan", true);
    let kept = kept.add(&keeps);
    let left = network.add(&leaves);
    let port = |result: &Value| host.vlans(result["interfaces"][1]["name"].as_str().unwrap());
    assert_eq!(
        port(&kept),
        ["1 Egress Untagged", "100 PVID Egress Untagged"]
    );
    assert_eq!(port(&left), ["100 PVID Egress Untagged"]);
    let untagged = host.bridge().with("name", "plain");
    untagged.with("isGateway", false).add(&plain);
    let mut captures = [&keeps, &leaves].map(Capture::start);
    let mac = plain.mac("eth0");
    plain.ip("address add 192.0.2.9/24 dev eth0");
    // The address does not exist; the broadcast that asks for it is what other ports receive.
    assert!(!plain.pings("192.0.2.99"));
    let heard = captures
        .each_mut()
        .map(|it| it.sees(|frame| frame.from == mac));
    assert_eq!(heard, [true, false]);
    // The reference leaves ports like this.
    assert_eq!(network.check(&keeps, &kept).ok(), Value::Null);
    assert_eq!(network.check(&leaves, &left).ok(), Value::Null);
    let port = left["interfaces"][1]["name"].as_str().unwrap();
    host.run("bridge", &["vlan", "add", "dev", port, "vid", "1"]);
    let refusal = network.check(&leaves, &left).error();
    assert!(refusal.mentions("VLAN 1"), "{refusal:?}");
}

#[test]
fn bridge_with_an_uplink_filters_only_if_an_operator_wants_it() {
    let host = Host::new();
    host.ip("link add cni0 type bridge");
    host.ip("link add dummy0 type dummy");
    host.ip("link set dummy0 master cni0 up");
    host.ip("tuntap add uplink0 mode tap");
    host.ip("link set uplink0 master cni0 up");
    let a = host.sandbox("a");
    for network in [
        host.bridge().with("vlan", 100),
        host.bridge().with("vlanTrunk", json!([{"id": 100}])),
    ] {
        let refused = network.on("ADD", &a).error();
        refused.expect(7, &["uplink0", "vlan_filtering 1"]);
        let status = network.with("cniVersion", "1.1.0");
        status.call("STATUS").error().expect(50, &["uplink0"]);
    }
    host.ip("link set cni0 type bridge vlan_filtering 1");
    host.bridge().with("vlan", 100).add(&a);
}

#[test]
fn bridge_without_filtering_keeps_working_for_existing_ports() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let plain = host.bridge();
    for sandbox in [&a, &b] {
        plain.add(sandbox);
    }
    other(&host, 200).add(&c);
    assert!(a.pings("10.1.0.3") && a.pings("10.1.0.1"));
    assert!(c.pings("10.2.0.1"));
}

#[test]
fn example_keeps_its_containers_and_their_gateway_in_their_vlan() {
    let host = Host::new();
    let pods = Example::list(&host, "bridge-vlan.conflist").pods();
    pods.reach_each_other(1);
    let beside = host.bridge().with("bridge", "cni5").without("ipam");
    let plain = host.sandbox("plain");
    let beside = beside.with("isGateway", false);
    beside.add(&plain);
    for (sandbox, number) in [(&pods.a, 1), (&pods.b, 2), (&plain, 3)] {
        join_lan(sandbox, "eth0", number);
    }
    assert!(pods.a.pings("192.0.2.2"));
    assert!(!pods.a.pings("192.0.2.3"), "VLAN 100 to none");
    beside.del(&plain);
    pods.detach();
}
