//! bridge: gateway addresses that the bridge gets, rejected ones, and those removed after a failed
//! ADD.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, at_once, eventually};

fn with_range<'h>(network: Network<'h>, subnet: &str, gateway: &str) -> Network<'h> {
    let range = json!({"subnet": subnet, "gateway": gateway});
    network.with("ipam.ranges", json!([[range]]))
}

/// Returns a network whose ADD fails after it has added the gateway address to the bridge.
fn failing(network: Network<'_>) -> Network<'_> {
    network.with(
        "ipam.routes",
        json!([{"dst": "10.9.0.0/16", "gw": "172.31.0.1"}]),
    )
}

#[test]
fn gateway_of_another_links_network_is_refused_before_anything_changes() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    host.bridge()
        .with("isGateway", false)
        .add(&host.sandbox("first"));
    let a = host.sandbox("a");
    // In the second network, only a next hop or a permanent neighbour is refused.
    let mac = outside.mac("outside");
    host.ip(&format!(
        "neighbour replace 192.0.2.2 lladdr {mac} dev uplink nud permanent"
    ));
    let before = host.snapshot();
    for (subnet, gateway, owned) in [
        ("192.0.2.0/24", "192.0.2.2", "192.0.2.0/24"),
        ("192.0.2.0/28", "192.0.2.2", "192.0.2.0/24"),
        ("192.0.2.0/24", "192.0.2.1", "this host has"),
        ("2001:db8::/64", "2001:db8::2", "2001:db8::/64"),
    ] {
        let network = with_range(host.bridge(), subnet, gateway);
        let words = [gateway, owned, "uplink"];
        network.on("ADD", &a).error().expect(7, &words);
        host.snapshot().assert_same_as(&before);
    }
    // The neighbour still answers.
    assert!(host.pings("192.0.2.2") && outside.pings("192.0.2.1"));
    host.bridge().add(&a);
    assert!(a.pings("10.1.0.1"));
}

#[test]
fn gateway_that_cannot_be_the_hosts_address_is_refused_before_anything_changes() {
    let host = Host::new();
    host.bridge()
        .with("isGateway", false)
        .add(&host.sandbox("first"));
    let a = host.sandbox("a");
    let before = host.snapshot();
    for (address, gateway, what) in [
        ("10.9.0.2/24", "10.9.0.2", "own address"),
        ("10.9.0.2/24", "224.0.0.1", "multicast"),
        ("10.9.0.2/24", "255.255.255.255", "broadcast"),
        ("10.9.0.2/24", "10.9.0.255", "broadcast"),
        ("10.9.0.2/24", "0.0.0.0", "unspecified"),
        ("10.9.0.2/24", "127.0.0.1", "loopback"),
        ("fd00:9::2/64", "fd00:9::2", "own address"),
        ("fd00:9::2/64", "ff02::1", "multicast"),
        ("fd00:9::2/64", "::", "unspecified"),
        ("fd00:9::2/64", "::1", "loopback"),
    ] {
        let ips = json!([{"address": address, "gateway": gateway}]);
        for network in [host.bridge(), host.ptp()] {
            let network = network.with("ipam", json!({"type": "static", "addresses": ips}));
            let refusal = network.on("ADD", &a).error();
            refusal.expect(7, &[gateway, what]);
            host.snapshot().assert_same_as(&before);
            // As after an ADD of the reference, which accepts most of these gateways.
            let interfaces = json!([{"name": "eth0", "sandbox": a.path()}]);
            let result = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips});
            a.ip("link add eth0 type veth peer name other");
            let refusal = network.check(&a, &result).error();
            a.ip("link delete eth0");
            refusal.expect(7, &[gateway, what]);
        }
    }
    let pair = json!([{"address": "10.9.0.1/31", "gateway": "10.9.0.0"}]);
    let network = host
        .ptp()
        .with("ipam", json!({"type": "static", "addresses": pair}));
    network.add(&a);
    assert!(a.pings("10.9.0.0"));
}

#[test]
fn gateway_behind_a_router_or_a_tunnel_is_accepted() {
    let host = Host::new();
    let _outside = host.outside();
    host.ip("route add default dev uplink");
    host.ip("route add 10.1.0.0/16 via 192.0.2.2");
    host.ip("tuntap add dev overlay mode tun");
    host.ip("address add 10.2.0.0/16 dev overlay");
    host.ip("link set overlay up");
    for (name, subnet) in [("a", "10.1.0.0/24"), ("b", "10.2.0.0/24")] {
        let network = host.bridge().with("name", name).with("bridge", name);
        let gateway = subnet.replace("0/24", "1");
        let pod = host.sandbox(name);
        with_range(network, subnet, &gateway).add(&pod);
        assert!(pod.pings(&gateway));
    }
}

#[test]
fn gateway_addresses_of_a_failed_add_are_removed() {
    let host = Host::new();
    let a = host.sandbox("a");
    failing(host.bridge()).on("ADD", &a).error();
    assert_eq!(host.addresses("cni0"), Vec::<String>::new());
    let corrected = with_range(host.bridge(), "10.7.0.0/24", "10.7.0.1");
    corrected.with("name", "corrected").add(&a);
    assert_eq!(host.addresses("cni0"), ["10.7.0.1/24"]);
    assert!(a.pings("10.7.0.1"));
}

#[test]
fn address_that_a_failed_add_replaced_comes_back() {
    let host = Host::new();
    host.ip("link add cni0 type bridge");
    host.ip("address add 10.7.0.1/24 dev cni0");
    let forced = failing(host.bridge()).with("forceAddress", true);
    forced.on("ADD", &host.sandbox("a")).error();
    assert_eq!(host.addresses("cni0"), ["10.7.0.1/24"]);
}

/// Returns a host with these addresses on its bridge, whose kernel deletes secondary addresses
/// together with their primary one.
fn host_with_secondary_addresses(addresses: &[&str]) -> Host {
    let host = Host::new();
    host.ip("link add cni0 type bridge");
    for scope in ["all", "cni0"] {
        host.set_sysctl(&format!("net/ipv4/conf/{scope}/promote_secondaries"), "0");
    }
    for address in addresses {
        host.ip(&format!("address add {address} brd + dev cni0"));
    }
    host
}

#[test]
fn secondary_addresses_that_a_failed_add_replaced_come_back() {
    let addresses = ["10.7.0.1/24", "10.7.0.2/24", "192.168.7.1/24"];
    let host = host_with_secondary_addresses(&addresses);
    let before = host.ip("-4 -oneline address show dev cni0");
    let forced = failing(host.bridge()).with("forceAddress", true);
    forced.on("ADD", &host.sandbox("a")).error();
    assert_eq!(host.ip("-4 -oneline address show dev cni0"), before);
}

#[test]
fn gateway_that_was_secondary_to_a_replaced_address_is_added_again() {
    let host = host_with_secondary_addresses(&["10.1.0.5/24", "10.1.0.1/24"]);
    let a = host.sandbox("a");
    let lease = |address, gateway| json!({"address": address, "gateway": gateway});
    let addresses = json!([
        lease("10.1.0.9/24", "10.1.0.1"),
        lease("10.2.0.9/24", "10.2.0.1")
    ]);
    let ipam = json!({"type": "static", "addresses": addresses});
    let network = host.bridge().with("forceAddress", true).with("ipam", ipam);
    let result = network.add(&a);
    assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "10.2.0.1/24"]);
    assert!(a.pings("10.1.0.1") && a.pings("10.2.0.1"));
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn failed_add_leaves_the_gateway_of_pods_that_came_meanwhile() {
    for round in 0..8 {
        let host = Host::new();
        let names = ["a", "b", "c", "d"];
        let pods = names.map(|name| host.sandbox(&format!("{name}{round}")));
        let attached = at_once(&pods, |pod| {
            let mut network = host.bridge();
            if pod.name().starts_with(['c', 'd']) {
                network = failing(network);
            }
            network.on("ADD", pod).run().status.success()
        });
        assert_eq!(attached, [true, true, false, false]);
        let gateways = ["10.1.0.1/24", "fd00:1::1/64"];
        assert_eq!(host.addresses("cni0"), gateways, "round {round}");
        for pod in &pods[..2] {
            assert!(pod.pings("10.1.0.1") && pod.pings("fd00:1::1"));
        }
    }
}

#[test]
fn link_local_gateway_stands_beside_the_bridges_own_link_local_address() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge_v4().add(&a);
    let own = host.link_local_addresses("cni0");
    assert_eq!(own.len(), 1, "the kernel gives the bridge one");
    let network = host.bridge().with("isDefaultGateway", true);
    let network = with_range(network, "fd00:1::/64", "fe80::1");
    network
        .with("name", "six")
        .with("forceAddress", true)
        .add(&b);
    let addresses = host.link_local_addresses("cni0");
    assert!(addresses.contains(&own[0]), "{addresses:?}");
    assert!(
        addresses.contains(&"fe80::1/64".to_owned()),
        "{addresses:?}"
    );
    assert_eq!(b.default_gateways(), ["fe80::1"]);
    assert!(b.pings("fe80::1%eth0"));
}

#[test]
fn ipv4_addresses_have_the_broadcast_address_of_their_network() {
    let host = Host::new();
    for (name, address, gateway, expected) in [
        ("a", "10.1.0.2/24", true, json!("10.1.0.255")),
        ("b", "10.3.0.2/30", true, json!("10.3.0.3")),
        ("c", "10.4.0.1/31", false, Value::Null),
    ] {
        for by_reference in [false, true] {
            let pod = host.sandbox(&format!("{name}-{by_reference}"));
            let bridge = format!("br-{}", pod.name());
            let ipam = json!({"type": "static", "addresses": [{"address": address}]});
            let network = host.bridge().with("ipam", ipam).with("name", pod.name());
            let mut network = network.with("bridge", bridge.as_str());
            network = network.with("isGateway", gateway);
            if by_reference {
                // The reference runs second, because ours rejects a gateway that is on another
                // bridge.
                network = network.by_reference();
            }
            network.add(&pod);
            let has_it = |place: Vec<Value>, link: &str| {
                let address = &place[0]["addr_info"][0];
                assert_eq!(address["family"], "inet");
                assert_eq!(address["broadcast"], expected, "{link}");
            };
            has_it(pod.ip_json("-4 address show dev eth0"), pod.name());
            if gateway {
                let shown = host.ip_json(&format!("-4 address show dev {bridge}"));
                has_it(shown, &bridge);
            }
        }
    }
}

#[test]
fn default_route_of_the_lease_is_kept_beside_those_of_other_tables() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge().with("isDefaultGateway", true);
    let with_routes = |routes| network.clone().with("ipam.routes", routes);
    let kept = with_routes(json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.77"}]));
    let result = kept.add(&a);
    assert_eq!(a.default_gateways(), ["10.1.0.77", "fd00:1::1"]);
    assert_eq!(kept.check(&a, &result).ok(), Value::Null);
    let elsewhere = json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.78", "table": 100}]);
    with_routes(elsewhere).with("cniVersion", "1.1.0").add(&b);
    assert_eq!(b.default_gateways(), ["10.1.0.1", "fd00:1::1"]);
    let in_table = b.ip("-4 route show table 100");
    assert!(in_table.contains("default via 10.1.0.78"), "{in_table}");
}

#[test]
fn route_of_link_scope_leads_to_neighbours() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("cniVersion", "1.1.0");
    let routes = json!([
        {"dst": "10.9.0.0/16", "scope": 253},
        {"dst": "fd00:9::/64", "scope": 253},
        {"dst": "10.8.0.0/16", "scope": 0},
    ]);
    let network = network.with("isDefaultGateway", true);
    let network = network.with("ipam.routes", routes);
    let result = network.add(&a);
    host.ip("address add 10.9.0.1/16 dev cni0");
    host.ip("address add fd00:9::1/64 dev cni0 nodad");
    for neighbour in ["10.9.0.1", "fd00:9::1"] {
        assert!(eventually(|| a.pings(neighbour)), "{neighbour}");
    }
    let routes = a.routes();
    let to = |dst: &str| routes.iter().find(|it| it["dst"] == dst).unwrap();
    for on_link in ["10.9.0.0/16", "fd00:9::/64"] {
        assert_eq!(to(on_link)["gateway"], Value::Null);
    }
    assert_eq!(to("10.8.0.0/16")["gateway"], "10.1.0.1");
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn first_of_two_default_routes_wins_in_both_families() {
    let host = Host::new();
    let a = host.sandbox("a");
    let first = host.bridge().with("isDefaultGateway", true);
    let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    let second = first.clone().with("bridge", "cni1").with("name", "second");
    let second = second.with("ipam.ranges", ranges);
    let result = first.add(&a);
    let other = second.on("ADD", &a).ifname("net1").ok();
    let leave_by = |link: &str| {
        let v4 = (1..9).map(|it| format!("198.51.100.{it}"));
        for to in v4.chain((1..9).map(|it| format!("2001:db8::{it}"))) {
            let way = a.ip(&format!("route get {to}"));
            assert!(way.contains(&format!("dev {link} ")), "{way}");
        }
    };
    leave_by("eth0");
    assert_eq!(first.check(&a, &result).ok(), Value::Null);
    assert_eq!(second.check(&a, &other).ifname("net1").ok(), Value::Null);
    first.del(&a);
    leave_by("net1");
}
