//! portmap: traffic through a host port, from everywhere.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use tests::ports::route_localnet;
use tests::traffic::{tcp_by_port, udp_by_port};
use tests::{Host, Place, Ports, Sandbox};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

/// Addresses through which other hosts reach the host.
const ADDRESSES: [&str; 4] = ["192.0.2.1", "10.1.0.1", "[2001:db8::1]", "[fd00:1::1]"];

/// Connects from `client` to the pod with TCP and UDP through each of `addresses`. Returns the
/// source addresses that the pod saw.
fn reach(client: &impl Place, addresses: &[&str], pod: &Sandbox) -> Vec<[Option<IpAddr>; 2]> {
    let seen = addresses.iter().map(|address| {
        [
            tcp_by_port(client, &format!("{address}:8080"), (pod, 80)),
            udp_by_port(client, &format!("{address}:8053"), (pod, 53)),
        ]
    });
    seen.collect()
}

fn both(address: &str) -> [Option<IpAddr>; 2] {
    [Some(address.parse().unwrap()); 2]
}

/// Returns a chain with netfilter seeing bridged frames or not; `None` if the kernel cannot.
fn ports(host: &Host, bridged_frames: bool) -> Option<Ports<'_>> {
    let ports = host
        .ports()
        .with_bridge("bridgeNfCall", bridged_frames)
        .with_bridge("hairpinMode", true);
    (host.show_bridged_frames(bridged_frames) == bridged_frames).then_some(ports)
}

#[test]
fn other_hosts_reach_the_pod_and_are_seen_as_what_they_are() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    host.ports().add(&a, &PORTS);
    let seen = reach(&outside, &["192.0.2.1", "[2001:db8::1]"], &a);
    assert_eq!(seen, [both("192.0.2.2"), both("2001:db8::2")]);
}

#[test]
fn the_host_reaches_the_pod_by_all_of_its_addresses_and_localhost() {
    let host = Host::new();
    host.outside_of_both_families();
    let a = host.sandbox("a");
    host.ports().add(&a, &PORTS);
    for seen in reach(&host, &ADDRESSES, &a) {
        assert!(seen.iter().all(Option::is_some), "{seen:?}");
    }
    assert_eq!(reach(&host, &["127.0.0.1"], &a), [both("10.1.0.1")]);
}

/// If answers pass netfilter, the pod sees the client's own address. Otherwise the client could not
/// recognize the answers, so it is masqueraded.
#[test]
fn other_pods_reach_the_pod_whether_or_not_bridged_frames_are_seen() {
    for (bridged_frames, v4, v6) in [
        (true, "10.1.0.3", "fd00:1::3"),
        (false, "10.1.0.1", "fd00:1::1"),
    ] {
        let host = Host::new();
        host.outside_of_both_families();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let Some(ports) = ports(&host, bridged_frames) else {
            continue;
        };
        ports.add(&a, &PORTS);
        ports.add(&b, &[]);
        let seen = reach(&b, &ADDRESSES, &a);
        assert_eq!(seen, [both(v4), both(v4), both(v6), both(v6)]);
    }
}

#[test]
fn a_pod_of_another_bridge_reaches_the_pod_as_what_it_is() {
    let host = Host::new();
    let [a, c] = ["a", "c"].map(|name| host.sandbox(name));
    host.ports().add(&a, &PORTS);
    let ranges = serde_json::json!([[{"subnet": "10.2.0.0/24"}]]);
    let other = host.ports().named("other").with_bridge("bridge", "cni1");
    other.with_bridge("ipam.ranges", ranges).add(&c, &[]);
    let seen = reach(&c, &["10.1.0.1", "10.2.0.1"], &a);
    assert_eq!(seen, [both("10.2.0.2"), both("10.2.0.2")]);
}

#[test]
fn the_pod_reaches_itself_whether_or_not_bridged_frames_are_seen() {
    for bridged_frames in [true, false] {
        let host = Host::new();
        host.outside_of_both_families();
        let a = host.sandbox("a");
        let Some(ports) = ports(&host, bridged_frames) else {
            continue;
        };
        ports.add(&a, &PORTS);
        a.ip("link set lo up");
        for (address, seen) in ADDRESSES.iter().zip(reach(&a, &ADDRESSES, &a)) {
            assert!(seen.iter().all(Option::is_some), "{address}: {seen:?}");
        }
    }
}

#[test]
fn forwarded_packets_to_other_hosts_keep_their_port() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ports().add(&a, &PORTS);
    host.ports().add(&b, &[]);
    // Servers on the same port number, on another host and in another pod.
    assert!(
        tcp_by_port(&b, "192.0.2.2:8080", (&outside, 8080)).is_none(),
        "no way back"
    );
    outside.ip("route add 10.1.0.0/24 via 192.0.2.1");
    let seen = tcp_by_port(&b, "192.0.2.2:8080", (&outside, 8080));
    assert_eq!(seen, Some("10.1.0.3".parse().unwrap()));
    let seen = tcp_by_port(&outside, "10.1.0.3:8080", (&b, 8080));
    assert_eq!(seen, Some("192.0.2.2".parse().unwrap()));
}

#[test]
fn a_port_of_one_address_is_of_no_other() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    host.ip("address add 192.0.2.9/24 dev uplink");
    let a = host.sandbox("a");
    let ports = [
        "192.0.2.9:8080:80",
        "[2001:db8::1]:8080:80",
        "127.0.0.1:8081:80",
        "0.0.0.0:8082:80",
        "[::]:8083:80",
    ];
    host.ports().add(&a, &ports);
    let from_outside = |target: &str| tcp_by_port(&outside, target, (&a, 80)).is_some();
    let from_host = |target: &str| tcp_by_port(&host, target, (&a, 80)).is_some();
    for target in [
        "192.0.2.9:8080",
        "[2001:db8::1]:8080",
        "192.0.2.1:8082",
        "[2001:db8::1]:8083",
    ] {
        assert!(from_outside(target), "{target}");
    }
    for target in [
        "192.0.2.1:8080",
        "192.0.2.9:8081",
        "[2001:db8::1]:8082",
        "192.0.2.1:8083",
    ] {
        assert!(!from_outside(target), "{target}");
    }
    assert!(from_host("127.0.0.1:8081") && from_host("127.0.0.1:8082"));
    assert!(!from_host("127.0.0.1:8080") && !from_host("127.0.0.1:8083"));
}

/// The pods' routes may be in a table of their own.
#[test]
fn a_pod_is_reached_by_a_route_of_any_table_and_a_missing_route_is_reported() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let portmap = host.ports().attach(&a, &PORTS);
    host.ip("route delete 10.1.0.0/24 dev cni0");
    host.ip("route add 10.1.0.0/24 dev cni0 src 10.1.0.1 table 100");
    let outcome = portmap.on("ADD", &a).run();
    outcome.ok();
    let said = "there is no route to 10.1.0.2, so clients at 127.0.0.1 and some neighbours";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    assert_eq!(route_localnet(&host), "0");
    for discarding in ["blackhole", "unreachable", "prohibit"] {
        host.ip(&format!("route add {discarding} 10.1.0.0/24"));
        let outcome = portmap.on("ADD", &a).run();
        assert!(
            outcome.status.success() && outcome.stderr.contains(said),
            "{outcome:?}"
        );
        host.ip("route delete 10.1.0.0/24");
    }
    host.ip("rule add to 10.1.0.0/24 lookup 100");
    assert_eq!(portmap.on("ADD", &a).run().stderr, "");
    assert_eq!(reach(&outside, &["192.0.2.1"], &a), [both("192.0.2.2")]);
    assert_eq!(reach(&host, &["127.0.0.1"], &a), [both("10.1.0.1")]);
    portmap.on("CHECK", &a).ok();
}

#[test]
fn localhost_of_ipv6_is_refused_at_once() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ports().add(&a, &PORTS);
    let target = "[::1]:8080".parse().unwrap();
    let error = TcpStream::connect_timeout(&target, Duration::from_secs(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn without_snat_clients_are_seen_as_what_they_are_and_localhost_does_not_reach_the_pod() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    host.ports().with("snat", false).add(&a, &PORTS);
    assert_eq!(reach(&outside, &["192.0.2.1"], &a), [both("192.0.2.2")]);
    assert_eq!(route_localnet(&host), "0");
    assert_eq!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)), None);
}

#[test]
fn with_masq_all_every_client_is_seen_as_the_host() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    host.ports().with("masqAll", true).add(&a, &PORTS);
    let seen = reach(&outside, &["192.0.2.1", "[2001:db8::1]"], &a);
    assert_eq!(seen, [both("10.1.0.1"), both("fd00:1::1")]);
}

#[test]
fn no_program_is_needed() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let a = host.sandbox("a");
    let portmap = host.ports().attach(&a, &PORTS);
    portmap.on("ADD", &a).env("PATH", "/nowhere").ok();
    assert_eq!(reach(&outside, &["192.0.2.1"], &a), [both("192.0.2.2")]);
    portmap.on("CHECK", &a).env("PATH", "/nowhere").ok();
    portmap.on("DEL", &a).env("PATH", "/nowhere").ok();
    assert_eq!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)), None);
}
