//! bridge: existing bridges of other programs, with various settings.

use std::thread;

use serde_json::{Value, json};
use tests::traffic::{tcp, udp};
use tests::{Host, Network, Place, Sandbox, eventually};

/// Returns a host with a cni0 that another program made without a MAC and brought up.
fn host_with_bridge() -> Host {
    let host = Host::new();
    host.ip("link add cni0 type bridge");
    host.ip("link set cni0 up");
    host
}

/// Returns the MAC of a neighbour in the sandbox's table.
fn neighbour(sandbox: &Sandbox, address: &str) -> Value {
    let entries = sandbox.ip_json(&format!("neighbour show {address} dev eth0"));
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0]["lladdr"].clone()
}

/// Returns the network `pods` with these ranges.
fn with_ranges<'h>(host: &'h Host, ranges: &[&str]) -> Network<'h> {
    let ranges: Vec<_> = ranges
        .iter()
        .map(|range| json!([{"subnet": range}]))
        .collect();
    host.bridge().with("ipam.ranges", ranges)
}

/// Returns the STP state of a port: `forwarding`, `listening` and so on.
fn port_state(host: &Host, result: &Value) -> Value {
    let name = result["interfaces"][1]["name"].as_str().unwrap();
    host.link(name)["linkinfo"]["info_slave_data"]["state"].clone()
}

#[test]
fn a_mac_that_the_kernel_chose_stays_as_ports_come_and_go() {
    let host = host_with_bridge();
    assert_eq!(host.addr_assign_type("cni0"), "1", "the kernel chose it");
    let mac = host.mac("cni0");
    let network = host.bridge();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    network.add(&a);
    assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
    let assert_unchanged = || {
        assert_eq!(host.mac("cni0"), mac);
        for gateway in ["10.1.0.1", "fd00:1::1"] {
            assert_eq!(neighbour(&a, gateway), mac.as_str());
            assert!(a.pings(gateway));
        }
    };
    assert_unchanged();
    for _ in 0..2 {
        for sandbox in [&b, &c] {
            let result = network.add(sandbox);
            assert_eq!(result["interfaces"][0]["mac"], mac.as_str());
            assert_unchanged();
        }
        for sandbox in [&b, &c] {
            network.del(sandbox);
            assert_unchanged();
        }
    }
    network.del(&a);
    assert_eq!(host.mac("cni0"), mac, "without any port");
}

#[test]
fn a_mac_that_the_kernel_chose_stays_where_several_first_adds_come_at_once() {
    for _ in 0..5 {
        let host = host_with_bridge();
        let mac = host.mac("cni0");
        assert_eq!(mac_after_several_first_adds(&host), mac);
    }
}

/// The kernel removes the bridge's MAC with its last port and does not set it again.
#[test]
fn a_bridge_whose_last_port_left_has_a_mac_that_stays() {
    for _ in 0..5 {
        let host = host_with_bridge();
        host.ip("link add gone master cni0 type veth peer name gone1");
        host.ip("link delete gone");
        assert_eq!(host.mac("cni0"), "00:00:00:00:00:00");
        let mac = mac_after_several_first_adds(&host);
        assert_eq!(host.addr_assign_type("cni0"), "3", "chosen");
        let late = host.sandbox("late");
        let result = host.bridge_v4().add(&late);
        assert_eq!(result["interfaces"][0]["mac"], mac);
        assert!(late.pings("10.1.0.1"));
    }
}

/// Checks that all eight sandboxes report the same MAC, reach the bridge and pass CHECK.
fn mac_after_several_first_adds(host: &Host) -> String {
    let pods: Vec<_> = (0..8)
        .map(|number| host.sandbox(&format!("p{number}")))
        .collect();
    let network = host.bridge_v4();
    let results = tests::at_once(&pods, |pod| network.add(pod));
    let mac = host.mac("cni0");
    for (pod, result) in pods.iter().zip(&results) {
        assert_eq!(result["interfaces"][0]["mac"], mac);
        network.check(pod, result).ok();
        assert!(pod.pings("10.1.0.1"));
    }
    mac
}

/// A container with a network card of the host can set any alias on it, and the card returns to the
/// host with it.
#[test]
fn gc_leaves_links_that_only_say_they_are_of_a_pod() {
    let host = host_with_bridge();
    host.ip("link add card type ifb");
    for link in ["cni0", "card"] {
        host.ip(&format!("link set {link} alias cni:pods/x/eth0"));
    }
    let a = host.sandbox("a");
    let network = host.bridge_v4();
    network.add(&a);
    network.gc(&[]).ok();
    assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
    assert!(host.has_link("card"));
    assert!(host.has_link("cni0"));
}

#[test]
fn another_address_is_refused_by_both_names_and_replaced_where_asked() {
    for (family, theirs, ours) in [
        ("-4", "172.16.0.1/16", "10.1.0.1/24"),
        ("-4", "10.1.0.1/16", "10.1.0.1/24"),
        ("-6", "fd00:1::2/48", "fd00:1::1/64"),
    ] {
        let host = host_with_bridge();
        host.ip(&format!("{family} address add {theirs} dev cni0 nodad"));
        let a = host.sandbox("a");
        let range = if family == "-4" {
            "10.1.0.0/24"
        } else {
            "fd00:1::/64"
        };
        let network = with_ranges(&host, &[range]);
        let refusal = network.on("ADD", &a).error();
        refusal.expect(7, &["cni0", theirs, ours, "forceAddress"]);
        assert_eq!(host.addresses("cni0"), [theirs]);
        assert_eq!((a.links(), host.links().len()), (vec!["lo".to_owned()], 2));
        assert!(host.leases("pods").is_empty());
        network.with("forceAddress", true).add(&a);
        assert_eq!(host.addresses("cni0"), [ours]);
        assert!(a.pings(ours.split('/').next().unwrap()));
    }
}

/// Checks that the gateways of both ranges replace `theirs` on the bridge.
#[track_caller]
fn assert_replaced_by_both(theirs: &str, ranges: [&str; 2], gateways: [&str; 2]) {
    let host = host_with_bridge();
    host.ip(&format!("address add {theirs} dev cni0"));
    let network = with_ranges(&host, &ranges).with("forceAddress", true);
    for name in ["a", "b"] {
        let sandbox = host.sandbox(name);
        network.add(&sandbox);
        for gateway in gateways {
            let bears = host.addresses("cni0");
            assert!(sandbox.pings(gateway), "{name} {gateway}: {bears:?}");
        }
    }
    assert!(!host.addresses("cni0").contains(&theirs.to_owned()));
}

#[test]
fn an_ipv4_address_is_replaced_once_where_the_network_has_two_ranges() {
    let ranges = ["10.1.0.0/24", "10.2.0.0/24"];
    assert_replaced_by_both("172.16.0.1/16", ranges, ["10.1.0.1", "10.2.0.1"]);
}

#[test]
fn an_ipv6_address_is_replaced_once_where_it_overlaps_two_ranges() {
    let ranges = ["fd00:1::/64", "fd00:2::/64"];
    assert_replaced_by_both("fd00::1/16", ranges, ["fd00:1::1", "fd00:2::1"]);
}

#[test]
fn the_gateway_of_one_range_is_not_in_the_way_of_another_ranges() {
    let host = host_with_bridge();
    host.ip("address add 10.1.0.1/24 dev cni0");
    let network = with_ranges(&host, &["10.1.0.0/24", "10.2.0.0/24"]).with("forceAddress", true);
    for name in ["a", "b"] {
        let sandbox = host.sandbox(name);
        network.add(&sandbox);
        assert!(
            sandbox.pings("10.1.0.1") && sandbox.pings("10.2.0.1"),
            "{name}: {:?}",
            host.addresses("cni0")
        );
    }
}

#[test]
fn an_address_is_replaced_by_several_adds_at_once() {
    for _ in 0..5 {
        let host = host_with_bridge();
        host.ip("address add 172.16.0.1/16 dev cni0");
        let pods = ["a", "b", "c", "d"].map(|name| host.sandbox(name));
        let network = host.bridge_v4().with("forceAddress", true);
        thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| network.add(pod));
            }
        });
        assert_eq!(host.addresses("cni0"), ["10.1.0.1/24"]);
        assert!(pods.iter().all(|pod| pod.pings("10.1.0.1")));
    }
}

#[test]
fn the_gateways_addresses_may_be_there_already() {
    let host = host_with_bridge();
    host.ip("address add 10.1.0.1/24 dev cni0");
    host.ip("-6 address add fd00:1::1/64 dev cni0 nodad");
    for (name, force) in [("a", false), ("b", true)] {
        let sandbox = host.sandbox(name);
        host.bridge().with("forceAddress", force).add(&sandbox);
        assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "fd00:1::1/64"]);
        assert!(sandbox.pings("10.1.0.1") && sandbox.pings("fd00:1::1"));
    }
}

#[test]
fn add_does_not_wait_for_the_spanning_tree() {
    let host = host_with_bridge();
    // A port forwards only after twice this time, which is in hundredths of a second.
    host.ip("link set cni0 type bridge stp_state 1 forward_delay 1500");
    let result = host.bridge().add(&host.sandbox("a"));
    assert_eq!(port_state(&host, &result), "listening");
}

#[test]
fn traffic_passes_once_the_spanning_tree_forwards() {
    let host = host_with_bridge();
    // The kernel's minimum.
    host.ip("link set cni0 type bridge stp_state 1 forward_delay 200");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge();
    let results = [network.add(&a), network.add(&b)];
    assert_ne!(port_state(&host, &results[1]), "forwarding");
    let forwards = || {
        let mut states = results.iter().map(|result| port_state(&host, result));
        states.all(|state| state == "forwarding")
    };
    assert!(eventually(forwards));
    assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
    assert!(udp(&a, &b, "10.1.0.3") && udp(&b, &a, "fd00:1::2"));
}

#[test]
fn an_mtu_set_by_the_operator_stays_and_pods_have_their_own() {
    for (theirs, ours) in [(1400, 1500), (9000, 1500), (1400, 9000)] {
        let host = host_with_bridge();
        // The kernel adapts an MTU to the ports' unless it was set explicitly.
        host.ip(&format!("link set cni0 mtu {theirs}"));
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let network = host.bridge().with("cniVersion", "1.1.0").with("mtu", ours);
        let result = network.add(&a);
        network.add(&b);
        assert_eq!(host.link("cni0")["mtu"], theirs);
        assert_eq!(result["interfaces"][0]["mtu"], theirs);
        assert_eq!(
            (&a.link("eth0")["mtu"], &b.link("eth0")["mtu"]),
            (&json!(ours), &json!(ours))
        );
        // The payload without the headers of IPv4 and ICMP, which must pass unfragmented.
        let whole = (ours - 28).to_string();
        a.run(
            "ping",
            &["-n", "-c1", "-W2", "-Mdo", "-s", &whole, "10.1.0.3"],
        );
        assert!(tcp(&a, &host, "10.1.0.1").is_some() && tcp(&host, &b, "fd00:1::3").is_some());
    }
}

#[test]
fn two_networks_share_one_bridge() {
    let host = host_with_bridge();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let first = with_ranges(&host, &["fd00:1::/64"]).with("isDefaultGateway", true);
    let second = with_ranges(&host, &["fd00:2::/64"]).with("isDefaultGateway", true);
    let second = second.with("name", "second");
    first.add(&a);
    second.add(&b);
    // The host sends no neighbour requests for forwarded packets until its link-local address is
    // settled.
    let settled = || host.ip("-6 address show dev cni0 tentative").is_empty();
    assert!(eventually(settled));
    assert_eq!(host.addresses("cni0").len(), 2);
    assert!(a.pings("fd00:1::1") && b.pings("fd00:2::1"));
    // The route leads through the host, the default gateway of both.
    let (of_a, of_b) = ("fd00:1::2", "fd00:2::2");
    assert!(a.ip(&format!("route get {of_b}")).contains("via fd00:1::1"));
    assert!(udp(&a, &b, of_b) && udp(&b, &a, of_a));
    first.del(&a);
    assert_eq!(host.addresses("cni0").len(), 2);
    assert_eq!(host.leases("second").len(), 1);
    assert!(b.pings("fd00:2::1") && udp(&host, &b, of_b));
    first.add(&a);
    assert!(udp(&b, &a, "fd00:1::3"));
}

#[test]
fn a_foreign_port_stays_and_passes_traffic() {
    foreign_port_with_mac_stays_and_passes_traffic("02:00:00:00:00:01");
}

#[test]
fn a_port_whose_mac_is_higher_than_ours_stays_and_passes_traffic() {
    foreign_port_with_mac_stays_and_passes_traffic("fe:ff:ff:ff:ff:ff");
}

fn foreign_port_with_mac_stays_and_passes_traffic(its_mac: &str) {
    let host = host_with_bridge();
    let outside = host.outside();
    host.ip("address flush dev uplink");
    host.ip(&format!("link set uplink address {its_mac}"));
    host.ip("link set uplink master cni0");
    outside.ip("address add 10.1.0.200/24 dev outside");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let mac = host.mac("cni0");
    let network = host.bridge();
    for sandbox in [&a, &b] {
        network.add(sandbox);
        assert!(outside.pings("10.1.0.1"), "as before");
    }
    assert!(udp(&a, &outside, "10.1.0.200") && udp(&outside, &b, "10.1.0.3"));
    network.del(&a);
    network.gc(&[]).ok();
    assert!(!b.has_link("eth0"));
    let uplink = host.link("uplink");
    assert_eq!(uplink["master"], "cni0");
    assert_eq!(host.mac("cni0"), mac);
    assert!(outside.pings("10.1.0.1"));
}
