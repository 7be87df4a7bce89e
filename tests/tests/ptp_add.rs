//! ptp ADD: the pair, its addresses and routes on both sides, and the result.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tests::result::ptp_host_link;
use tests::{Host, Network, Place as _, Sandbox, at_once, eventually};

/// Returns the routes of both families through `link`, without the kernel's own.
fn routes(place: &impl tests::Place, link: &str) -> Vec<String> {
    let lines = ["-4", "-6"].map(|family| place.ip(&format!("{family} route show dev {link}")));
    let lines = lines.iter().flat_map(|it| it.lines());
    let added = lines.filter(|line| !line.contains("proto kernel"));
    added.map(|line| line.trim().to_owned()).collect()
}

/// Returns the network with these ranges only.
fn with_ranges<'h>(host: &'h Host, ranges: &[&str]) -> Network<'h> {
    let range = |subnet: &&str| json!([{ "subnet": subnet }]);
    let default = |subnet: &&str| {
        if subnet.contains(':') {
            "::/0"
        } else {
            "0.0.0.0/0"
        }
    };
    let defaults = ranges.iter().map(|it| json!({"dst": default(it)}));
    let network = host.ptp().with("ipam.routes", defaults.collect::<Vec<_>>());
    network.with("ipam.ranges", ranges.iter().map(range).collect::<Vec<_>>())
}

fn file_of_sandbox(sandbox: &Sandbox) -> &str {
    sandbox.path().to_str().unwrap()
}

#[test]
fn result_has_the_host_end_first_and_addresses_of_the_second_interface() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.ptp().add(&a);
    let end = ptp_host_link(&result);
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": end, "mac": host.mac(end)},
            {"name": "eth0", "mac": a.mac("eth0"), "sandbox": file_of_sandbox(&a)},
        ],
        "ips": [
            {"interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"interface": 1, "address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    assert_eq!(result, expected);
    assert_eq!(host.links(), ["lo", end]);
}

#[test]
fn both_sides_have_the_addresses_and_routes_of_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let end = ptp_host_link(&host.ptp().add(&a)).to_owned();
    assert_eq!(a.addresses("eth0"), ["10.1.0.2/24", "fd00:1::2/64"]);
    assert_eq!(
        routes(&a, "eth0"),
        [
            "default via 10.1.0.1",
            "10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
            "10.1.0.1 scope link src 10.1.0.2",
            "fd00:1::1 src fd00:1::2 metric 1024 pref medium",
            "fd00:1::/64 via fd00:1::1 src fd00:1::2 metric 1024 pref medium",
            "default via fd00:1::1 metric 1024 pref medium",
        ]
    );
    let kernels = a.ip("route show proto kernel") + &a.ip("-6 route show proto kernel");
    let kernels: Vec<_> = kernels.lines().map(str::trim).collect();
    assert_eq!(
        kernels,
        [
            "10.1.0.0/24 dev eth0 scope link src 10.1.0.2 metric 4096",
            "fd00:1::/64 dev eth0 metric 4096 pref medium",
            "fe80::/64 dev eth0 metric 256 pref medium",
        ]
    );
    assert_eq!(host.addresses(&end), ["10.1.0.1/32", "fd00:1::1/128"]);
    let to_pod = ["10.1.0.2 scope host", "fd00:1::2 metric 1024 pref medium"];
    assert_eq!(routes(&host, &end), to_pod);
    assert_eq!(host.link(&end)["ifalias"], "cni:pods/a/eth0");
}

#[test]
fn first_packets_are_answered_in_both_directions_and_between_pods() {
    let host = Host::new();
    for round in 0..5 {
        let names = ["a", "b"].map(|name| format!("{name}{round}"));
        let [a, b] = names.each_ref().map(|name| host.sandbox(name));
        let network = host.ptp();
        network.add(&a);
        assert!(a.pings("fd00:1::1") && a.pings("10.1.0.1"));
        let result = network.add(&b);
        let v6 = result["ips"][1]["address"].as_str().unwrap();
        let v6 = v6.split('/').next().unwrap();
        // The host asks for the MAC of `b`.
        assert!(a.pings(v6), "{round}");
        assert!(host.pings(v6));
        network.del(&a);
        network.del(&b);
    }
}

#[test]
fn one_family_works_alone() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let v4 = with_ranges(&host, &["10.1.0.0/24"]);
    let end = ptp_host_link(&v4.add(&a)).to_owned();
    assert!(a.pings("10.1.0.1") && host.pings("10.1.0.2"));
    let off = host.sysctl(&format!("net/ipv6/conf/{end}/disable_ipv6"));
    assert_eq!(off.unwrap(), "1");
    assert_eq!(host.sysctl("net/ipv6/conf/all/forwarding").unwrap(), "0");
    v4.del(&a);
    host.set_sysctl("net/ipv4/ip_forward", "0");
    let v6 = with_ranges(&host, &["fd00:1::/64"]).with("name", "six");
    let end = ptp_host_link(&v6.add(&b)).to_owned();
    assert!(b.pings("fd00:1::1") && host.pings("fd00:1::2"));
    assert_eq!(host.sysctl("net/ipv4/ip_forward").unwrap(), "0");
    assert_eq!(host.sysctl("net/ipv6/conf/all/forwarding").unwrap(), "1");
    assert_eq!(host.addresses(&end), ["fd00:1::1/128"]);
    assert_eq!(b.default_gateways(), ["fd00:1::1"]);
}

#[test]
fn ipv6_works_where_host_and_sandbox_have_it_disabled_by_default() {
    let host = Host::new();
    host.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    let a = host.sandbox("a");
    a.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    host.ptp().add(&a);
    assert!(a.pings("fd00:1::1") && host.pings("fd00:1::2"));
}

#[test]
fn mtu_is_the_configured_one_or_that_of_the_default_route() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let mtus = |result: &Value, pod: &Sandbox| {
        let end = host.link(ptp_host_link(result))["mtu"].clone();
        [end, pod.link("eth0")["mtu"].clone()]
    };
    assert_eq!(
        mtus(&host.ptp().with("mtu", 1400).add(&a), &a),
        [1400, 1400]
    );
    host.ip("link set uplink mtu 1450");
    host.ip("route add default via 192.0.2.2");
    assert_eq!(mtus(&host.ptp().add(&b), &b), [1450, 1450]);
    let less = host.ptp().with("mtuOverhead", 50);
    assert_eq!(mtus(&less.add(&c), &c), [1400, 1400]);
    drop(outside);
}

#[test]
fn routes_of_the_lease_lead_through_the_gateway_with_their_attributes() {
    let host = Host::new();
    let a = host.sandbox("a");
    let routes = json!([
        {"dst": "192.0.2.0/24"},
        {"dst": "198.51.100.0/24", "gw": "10.1.0.1", "mtu": 1300, "priority": 7},
        {"dst": "2001:db8::/32", "gw": "fd00:1::1"},
    ]);
    let result = host.ptp().with("ipam.routes", routes.clone()).add(&a);
    assert_eq!(result["routes"], routes);
    let shown = |to: &str| a.ip(&format!("route show {to}"));
    assert_eq!(
        shown("192.0.2.0/24").trim(),
        "192.0.2.0/24 via 10.1.0.1 dev eth0"
    );
    let special = shown("198.51.100.0/24");
    assert!(
        special.contains("metric 7") && special.contains("mtu 1300"),
        "{special}"
    );
    assert!(
        a.ip("-6 route show 2001:db8::/32")
            .contains("via fd00:1::1")
    );
    assert_eq!(a.default_gateways(), Vec::<String>::new());
}

#[test]
fn route_through_another_host_of_the_network_leads_through_the_gateway() {
    let host = Host::new();
    let a = host.sandbox("a");
    let route = |dst: &str, gw: &str| json!({"dst": dst, "gw": gw});
    let asked = [
        ("198.51.100.0/24", "10.1.0.9"),
        ("2001:db8::/32", "fd00:1::9"),
    ];
    let asked = asked.map(|(dst, gw)| route(dst, gw));
    let network = host.ptp().with("ipam.routes", json!(asked));
    let result = network.add(&a);
    let made = [
        ("198.51.100.0/24", "10.1.0.1"),
        ("2001:db8::/32", "fd00:1::1"),
    ];
    assert_eq!(
        result["routes"],
        json!(made.map(|(dst, gw)| route(dst, gw)))
    );
    for (dst, gw) in made {
        let shown = routes(&a, "eth0");
        let way = format!("{dst} via {gw}");
        assert!(shown.iter().any(|it| it.starts_with(&way)), "{shown:?}");
    }
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn gateway_is_reached_after_the_interface_was_down() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ptp().add(&a);
    a.ip("link set eth0 down");
    a.ip("link set eth0 up");
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        assert!(eventually(|| a.pings(gateway)), "{gateway}");
    }
}

#[test]
fn gateway_may_be_outside_the_containers_network() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ips = json!([
        {"address": "10.7.0.5/32", "gateway": "169.254.1.1"},
        {"address": "fd00:7::5/128", "gateway": "fe80::1"},
    ]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fe80::1"}]);
    let lease = json!({"cniVersion": "1.0.0", "ips": ips, "routes": routes});
    host.script(
        "leases",
        &format!("[ $CNI_COMMAND != ADD ] || echo '{lease}'"),
    );
    let network = host.ptp().with("ipam", json!({"type": "leases"}));
    let result = network.add(&a);
    assert_eq!(a.addresses("eth0"), ["10.7.0.5/32", "fd00:7::5/128"]);
    assert!(host.pings("10.7.0.5") && host.pings("fd00:7::5"));
    assert!(a.pings("169.254.1.1"));
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn several_addresses_of_one_network_all_work() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ips = json!([
        {"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24"},
        {"address": "fd00:1::5/64"}, {"address": "fd00:1::6/64"},
    ]);
    let lease = json!({"cniVersion": "1.0.0", "ips": ips, "routes": [{"dst": "::/0"}]});
    host.script(
        "leases",
        &format!("[ $CNI_COMMAND != ADD ] || echo '{lease}'"),
    );
    let network = host.ptp().with("ipam", json!({"type": "leases"}));
    let result = network.add(&a);
    for address in ["10.1.0.5", "10.1.0.6", "fd00:1::5", "fd00:1::6"] {
        assert!(host.pings(address), "{address}");
    }
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
    network.del(&a);
    assert_eq!(host.links(), ["lo"]);
}

#[test]
fn mac_is_the_requested_one_or_follows_from_the_address() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ptp().add(&a);
    assert_eq!(a.mac("eth0"), "0a:58:0a:01:00:02");
    let asked = host.ptp().with("runtimeConfig.mac", "02:00:00:00:00:42");
    asked.add(&b);
    assert_eq!(b.mac("eth0"), "02:00:00:00:00:42");
    assert!(b.pings("10.1.0.1") && b.pings("10.1.0.2"));
}

#[test]
fn two_networks_of_one_container_both_work() {
    let host = Host::new();
    let a = host.sandbox("a");
    let second = with_ranges(&host, &["10.2.0.0/24", "fd00:2::/64"]);
    let second = second.with("name", "second").with("ipam.routes", json!([]));
    host.ptp().add(&a);
    let result = second.on("ADD", &a).ifname("net1").ok();
    assert_eq!(result["interfaces"][1]["name"], "net1");
    for address in ["10.1.0.2", "10.2.0.2", "fd00:1::2", "fd00:2::2"] {
        assert!(host.pings(address), "{address}");
    }
    second.on("DEL", &a).ifname("net1").ok();
    assert!(host.pings("10.1.0.2") && host.pings("fd00:1::2"));
    assert_eq!(a.links(), ["eth0", "lo"]);
}

#[test]
fn many_pods_are_attached_and_detached_at_once() {
    let host = Host::new();
    let names: Vec<_> = (0..24).map(|number| format!("pod{number}")).collect();
    let pods: Vec<_> = names.iter().map(|name| host.sandbox(name)).collect();
    let network = host.ptp().with("ipMasq", true);
    let results = at_once(&pods, |pod| network.add(pod));
    let addresses = results.iter().flat_map(|it| it["ips"].as_array().unwrap());
    let addresses = addresses.map(|it| it["address"].as_str().unwrap().split('/').next().unwrap());
    let addresses: BTreeSet<_> = addresses.collect();
    assert_eq!(addresses.len(), 2 * pods.len());
    let own = pods[0].addresses("eth0");
    for address in addresses {
        // A pod reaches itself through `lo`, which is down.
        let is_own = own.iter().any(|it| it.starts_with(&format!("{address}/")));
        assert!(
            host.pings(address) && (is_own || pods[0].pings(address)),
            "{address}"
        );
    }
    at_once(&pods, |pod| network.del(pod));
    assert_eq!(host.links(), ["lo"]);
    assert!(!host.run("nft", &["list", "ruleset"]).contains("cni:pods"));
}

#[test]
fn every_version_of_the_protocol_works() {
    let host = Host::new();
    for version in [
        "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
    ] {
        let a = host.sandbox(version);
        let network = host.ptp().with("cniVersion", version);
        let result = network.add(&a);
        assert_eq!(result["cniVersion"], version);
        assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"), "{version}");
        network.del(&a);
    }
}
