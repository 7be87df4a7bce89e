//! ptp: masquerading, ports and limits behind it, and pods that attack the host, on traffic.

use serde_json::{Value, json};
use tests::result::ptp_host_link;
use tests::router_advertisement::{flooded, heard, sent, traces};
use tests::traffic::{self, Flood, client_seen, tcp, tcp_by_port, udp};
use tests::{Chain, Host, Place as _, Removal, at_once, eventually};

#[test]
fn pods_leave_from_the_hosts_address_and_keep_their_own_among_each_other() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.ptp().with("ipMasq", true);
    let result = network.add(&a);
    network.add(&b);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
    assert_eq!(client_seen(&b, &outside, "2001:db8::2"), "2001:db8::1");
    assert!(udp(&a, &outside, "192.0.2.2") && udp(&b, &outside, "2001:db8::2"));
    assert_eq!(client_seen(&a, &b, "10.1.0.3"), "10.1.0.2");
    assert_eq!(client_seen(&a, &b, "fd00:1::3"), "fd00:1::2");
    assert_eq!(client_seen(&a, &host, "10.1.0.1"), "10.1.0.2");
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    for word in ["iptables", "nftables", ""] {
        let c = host.sandbox(&format!("c{word}"));
        network.clone().with("ipMasqBackend", word).add(&c);
        assert_eq!(client_seen(&c, &outside, "192.0.2.2"), "192.0.2.1");
    }
}

/// The kernel adds the local route of an IPv6 address in the background. Each network has a gateway
/// of its own, so the host's end of no other pod has the address. Without its local route, the host
/// has no route to a gateway at all.
#[test]
fn ipv6_addresses_of_both_ends_work_when_add_answers() {
    let host = Host::new();
    at_once(&["1", "2", "3", "4", "5", "6", "7", "8"], |number| {
        let network = host.ptp().with("name", format!("net{number}"));
        let subnet = json!([[{"subnet": format!("fd00:{number}::/64")}]]);
        let network = network.with("ipam.ranges", subnet);
        let network = network.with("ipam.routes", json!([]));
        let gateway = format!("fd00:{number}::1");
        for round in 0..25 {
            let pod = host.sandbox(&format!("pod{number}-{round}"));
            let result = network.add(&pod);
            assert!(udp(&host, &host, &gateway), "{round}");
            let address = result["ips"][0]["address"].as_str().unwrap();
            let address = address.strip_suffix("/64").unwrap();
            assert!(udp(&host, &pod, address), "{round}");
            assert!(udp(&pod, &host, &gateway), "{round}");
            network.del(&pod);
            pod.remove();
        }
    });
}

#[test]
fn without_masquerading_and_for_exempt_networks_pods_keep_their_address() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add 10.1.0.0/24 via 192.0.2.1");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ptp().add(&a);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "10.1.0.2");
    let network = host.ptp().with("ipMasq", true);
    let exempt = json!(["192.0.2.0/24"]);
    network.with("nonMasqueradeCIDRs", exempt).add(&b);
    assert_eq!(client_seen(&b, &outside, "192.0.2.2"), "10.1.0.3");
}

#[test]
fn a_flush_of_the_firewall_is_repaired_by_reload() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let network = host.ptp().with("ipMasq", true);
    let result = network.add(&a);
    host.run("nft", &["flush", "ruleset"]);
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "none");
    let refusal = network.check(&a, &result).error();
    assert!(refusal.mentions("cni-masquerade"), "{refusal:?}");
    let with_result = network.clone().with("prevResult", result.clone());
    with_result.on("RELOAD", &a).ok();
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "192.0.2.1");
    network.check(&a, &result).ok();
}

#[test]
fn ports_are_reached_from_everywhere_behind_portmap() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let chain = Chain::new(&host, &["ptp", "portmap"]);
    let warm = chain.add(&a).unwrap();
    chain.remove(Removal::Del, (&a, &warm)).unwrap();
    let before = host.snapshot();
    let result = chain.add(&a).unwrap();
    let neighbour = chain.clone().with_ports([8081, 8054]);
    let other = neighbour.add(&b).unwrap();
    for target in ["192.0.2.1:8080", "[2001:db8::1]:8080"] {
        assert!(
            tcp_by_port(&outside, target, (&a, 80)).is_some(),
            "{target}"
        );
        assert!(tcp_by_port(&b, target, (&a, 80)).is_some(), "{target}");
        assert!(tcp_by_port(&a, target, (&a, 80)).is_some(), "{target}");
        assert!(tcp_by_port(&host, target, (&a, 80)).is_some(), "{target}");
    }
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    assert!(tcp_by_port(&b, "10.1.0.1:8080", (&a, 80)).is_some());
    chain.check_first(2, (&a, &result)).unwrap();
    chain.remove(Removal::Del, (&a, &result)).unwrap();
    neighbour
        .remove(Removal::DelForgotten, (&b, &other))
        .unwrap();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn both_rates_are_kept_behind_bandwidth() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add 10.1.0.0/24 via 192.0.2.1");
    let a = host.sandbox("a");
    let chain = Chain::new(&host, &["ptp", "bandwidth"]).with("ptp", "ipMasq", &json!(false));
    let result = chain.add(&a).unwrap();
    let (near, far) = ("10.1.0.2", "192.0.2.2");
    let to_pod = traffic::flood(Flood::Tcp, (&outside, far), (&a, near, "eth0"), 2);
    let from_pod = traffic::flood(Flood::Tcp, (&a, near), (&outside, far, "outside"), 2);
    for rates in [to_pod, from_pod] {
        assert!(rates.iter().all(|it| *it < 11_500_000.0), "{rates:?}");
        assert!(rates.iter().sum::<f64>() > 12_000_000.0, "{rates:?}");
    }
    chain.check_first(2, (&a, &result)).unwrap();
    chain.remove(Removal::Del, (&a, &result)).unwrap();
    assert_eq!(host.links(), ["lo", "uplink"]);
}

#[test]
fn ipv4_survives_a_host_end_that_was_down() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let result = host.ptp().with("ipMasq", true).add(&a);
    let end = ptp_host_link(&result);
    host.ip(&format!("link set {end} down"));
    assert_eq!(client_seen(&a, &outside, "192.0.2.2"), "none");
    host.ip(&format!("link set {end} up"));
    assert!(eventually(
        || client_seen(&a, &outside, "192.0.2.2") == "192.0.2.1"
    ));
    assert!(host.pings("10.1.0.2"));
}

/// On a bridge it could, by ARP and neighbour discovery.
#[test]
fn a_pod_cannot_take_the_address_of_another() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ptp().add(&a);
    host.ptp().add(&b);
    a.ip("address add 10.1.0.3/32 dev eth0");
    a.ip("address add fd00:1::3/128 dev eth0 nodad");
    a.set_sysctl("net/ipv4/conf/eth0/arp_notify", "1");
    a.ip(&format!("link set eth0 address {}", b.mac("eth0")));
    for address in ["10.1.0.3", "fd00:1::3"] {
        assert!(tcp(&host, &b, address).is_some(), "{address}");
    }
    assert!(udp(&host, &b, "10.1.0.3") && udp(&host, &b, "fd00:1::3"));
}

/// The host's end has IPv6, and only its own sysctl protects a host that does not forward.
#[test]
fn router_advertisements_of_a_pod_change_nothing_on_the_host() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.ptp().add(&a);
    let end = ptp_host_link(&result);
    host.set_sysctl("net/ipv6/conf/all/forwarding", "0");
    flooded(&a, "eth0", || {
        assert!(eventually(|| heard(&host, end) > 20));
    });
    assert_eq!(traces(&host), Vec::<String>::new());
    let v4 = host.ptp().with("name", "four");
    let v4 = v4.with("ipam.ranges", json!([[{"subnet": "10.4.0.0/24"}]]));
    let v4 = v4.with("ipam.routes", json!([]));
    let b = host.sandbox("b");
    v4.add(&b);
    flooded(&b, "eth0", || assert!(eventually(|| sent(&b, "eth0") > 20)));
    assert_eq!(traces(&host), Vec::<String>::new());
}
