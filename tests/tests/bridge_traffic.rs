//! bridge: connectivity from the first packet on.

use std::net::IpAddr;

use serde_json::json;
use tests::traffic::{tcp, udp};
use tests::{Capture, Host, Place as _};

#[test]
fn pods_reach_each_other_and_the_gateway_in_both_families() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge();
    network.add(&a);
    network.add(&b);
    for (of_a, of_b, gateway) in [
        ("10.1.0.2", "10.1.0.3", "10.1.0.1"),
        ("fd00:1::2", "fd00:1::3", "fd00:1::1"),
    ] {
        assert!(udp(&a, &b, of_b) && udp(&b, &a, of_a), "{of_b}");
        assert_eq!(
            tcp(&a, &b, of_b),
            Some(of_a.parse().unwrap()),
            "the pod's own address is seen"
        );
        assert!(a.pings(gateway) && b.pings(gateway));
        assert!(udp(&a, &host, gateway) && udp(&host, &b, of_b));
    }
}

#[test]
fn pods_reach_another_host_that_has_a_route_to_them() {
    let host = Host::new();
    let outside = host.outside();
    host.ip("address add 2001:db8::1/64 dev uplink nodad");
    outside.ip("address add 2001:db8::2/64 dev outside nodad");
    outside.ip("route add 10.1.0.0/24 via 192.0.2.1");
    outside.ip("-6 route add fd00:1::/64 via 2001:db8::1");
    let a = host.sandbox("a");
    host.bridge().with("isDefaultGateway", true).add(&a);
    let pod: IpAddr = "10.1.0.2".parse().unwrap();
    assert_eq!(tcp(&a, &outside, "192.0.2.2"), Some(pod), "not masqueraded");
    assert!(tcp(&a, &outside, "2001:db8::2").is_some());
    assert!(udp(&outside, &a, "10.1.0.2") && udp(&outside, &a, "fd00:1::2"));
}

/// The host asks for a container's MAC from its own link-local address if it forwards to it. It
/// knows a container that has sent a packet without asking.
#[test]
fn another_host_reaches_a_silent_pod_as_soon_as_add_returns() {
    let host = Host::new();
    let outside = host.outside();
    host.ip("address add 2001:db8::1/64 dev uplink nodad");
    outside.ip("address add 2001:db8::2/64 dev outside nodad");
    outside.ip("route add 10.1.0.0/24 via 192.0.2.1");
    outside.ip("-6 route add fd00:1::/64 via 2001:db8::1");
    let a = host.sandbox("a");
    host.bridge().with("isDefaultGateway", true).add(&a);
    assert!(udp(&outside, &a, "10.1.0.2"));
    assert!(udp(&outside, &a, "fd00:1::2"));
}

#[test]
fn a_pod_reaches_itself_by_hairpin() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().with("hairpinMode", true).add(&a);
    host.loopback().on("ADD", &a).ok();
    assert!(a.pings("10.1.0.2") && a.pings("fd00:1::2"));
}

#[test]
fn the_ipv6_address_is_announced_on_dual_stack() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge().add(&a);
    let mut capture = Capture::start(&host);
    host.bridge().add(&b);
    let announced = capture.sees_announcement("0a:58:0a:01:00:03", "fd00:1::3");
    assert!(announced, "{:#?}", capture.seen());
}

#[test]
fn both_addresses_are_announced_where_the_mac_follows_from_neither() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge().add(&a);
    let asked = host.bridge().with("runtimeConfig.mac", "02:00:00:00:00:99");
    let mut captures = [Capture::start(&host), Capture::start(&a)];
    asked.add(&b);
    for capture in &mut captures {
        for address in ["10.1.0.3", "fd00:1::3"] {
            // The order may differ.
            let is_there = capture.sees_announcement("02:00:00:00:00:99", address);
            assert!(is_there, "{address}: {:#?}", capture.seen());
        }
    }
}

#[test]
fn a_neighbour_that_knew_another_mac_learns_the_new_one_at_once() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let at = |mac: &str| {
        let network = host
            .bridge()
            .with("runtimeConfig.ips", json!(["10.1.0.9", "fd00:1::9"]));
        network.with("runtimeConfig.mac", mac)
    };
    host.bridge().add(&a);
    at("02:00:00:00:00:0b").add(&b);
    assert!(a.pings("10.1.0.9") && a.pings("fd00:1::9"));
    assert!(host.pings("10.1.0.9") && host.pings("fd00:1::9"));
    at("02:00:00:00:00:0b").del(&b);
    at("02:00:00:00:00:0c").add(&c);
    assert!(a.pings("10.1.0.9") && a.pings("fd00:1::9"));
    assert!(host.pings("10.1.0.9") && host.pings("fd00:1::9"));
}

#[test]
fn duplicate_address_detection_is_done_where_asked_for() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let nodad = |sandbox: &tests::Sandbox| {
        let links = sandbox.ip_json("-6 address show dev eth0 scope global");
        links[0]["addr_info"][0]["nodad"] == true
    };
    host.bridge().add(&a);
    assert!(nodad(&a));
    host.bridge().with("enabledad", true).add(&b);
    assert!(!nodad(&b));
    assert!(b.pings("fd00:1::1"), "it is over when ADD returns");
}

#[test]
fn a_duplicate_address_is_an_error_where_detection_is_asked_for() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host
        .bridge()
        .with("runtimeConfig.ips", json!(["fd00:1::9"]));
    host.bridge().add(&a);
    a.ip("address add fd00:1::9/64 dev eth0 nodad");
    let before = host.snapshot();
    let refusal = network.with("enabledad", true).on("ADD", &b).error();
    assert!(refusal.mentions("fd00:1::9"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    assert!(!b.has_link("eth0"));
}
