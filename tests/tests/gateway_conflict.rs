//! bridge and ptp: gateways inside a network of another link, and what cnitool doctor reports.

use serde_json::{Value, json};
use tests::traffic::client_seen;
use tests::{Host, Network, Place as _, Sandbox};

/// Words of the note about a subnet that is a part of 10.0.0.0/8 on the uplink.
const NOTE: &str = "10.1.0.0/24 is a part of 10.0.0.0/8 on uplink";

/// Gives the uplink 10.5.0.5/8 and `fd00::5/16`, which contain the subnets of the pods. Returns the
/// neighbour 10.5.0.6 and `fd00::6`.
fn in_wide_networks(host: &Host) -> Sandbox {
    let outside = host.outside();
    host.ip("address add 10.5.0.5/8 dev uplink");
    host.ip("address add fd00::5/16 dev uplink nodad");
    outside.ip("address add 10.5.0.6/8 dev outside");
    outside.ip("address add fd00::6/16 dev outside nodad");
    outside
}

/// Makes the bridge of [`Host::bridge`] without an address, because a failed ADD leaves the bridge.
fn make_bridge(host: &Host) {
    let network = host.bridge().with("isGateway", false);
    network.add(&host.sandbox("first"));
}

/// Makes the host learn neighbours with the gateways' addresses: `outside` sends packets from these
/// addresses, and does not have them afterwards.
fn claim_gateways(host: &Host, outside: &Sandbox) {
    for (gateway, peer) in [("10.1.0.1/8", "10.5.0.5"), ("fd00:1::1/16", "fd00::5")] {
        outside.ip(&format!("address add {gateway} dev outside nodad"));
        let (address, _) = gateway.split_once('/').unwrap();
        outside.sh(&format!("ping -c 1 -w 5 -I {address} {peer}"));
        outside.ip(&format!("address delete {gateway} dev outside"));
        let neighbours = host.ip(&format!("neighbour show {address} dev uplink"));
        assert!(neighbours.contains("lladdr"), "{neighbours}");
    }
}

fn set_neighbours(host: &Host, addresses: [&str; 2]) {
    for address in addresses {
        host.ip(&format!(
            "neighbour replace {address} lladdr 02:00:00:00:00:99 dev uplink nud permanent"
        ));
    }
}

fn plugins(host: &Host) -> [Network<'_>; 2] {
    let bridge = host.bridge().with("isDefaultGateway", true);
    [bridge, host.ptp()].map(|it| it.with("ipMasq", true))
}

fn leasing<'h>(network: &Network<'h>, address: &str, gateway: &str) -> Network<'h> {
    let addresses = json!([{"address": address, "gateway": gateway}]);
    let ipam = json!({"type": "static", "addresses": addresses});
    network.clone().with("ipam", ipam)
}

/// Checks that ADD is refused with code 7 and these words, and leaves nothing.
#[track_caller]
fn refused(host: &Host, network: &Network<'_>, words: &[&str]) {
    let pod = host.sandbox("refused");
    let before = host.snapshot();
    network.on("ADD", &pod).error().expect(7, words);
    host.snapshot().assert_same_as(&before);
    assert_eq!(pod.links(), ["lo"]);
    pod.remove();
}

#[test]
fn part_of_a_wide_network_of_another_link_is_a_subnet_for_pods() {
    for plugin in 0..2 {
        let host = Host::new();
        let outside = in_wide_networks(&host);
        let network = &plugins(&host)[plugin];
        let pods = ["a", "b"].map(|name| host.sandbox(name));
        let outcomes = pods.each_ref().map(|pod| network.on("ADD", pod).run());
        let result = outcomes[0].ok();
        outcomes[1].ok();
        let notes = outcomes
            .each_ref()
            .map(|it| it.stderr.matches(NOTE).count());
        assert_eq!(notes, [1, 0], "{outcomes:#?}");
        let of_ipv6 = "fd00:1::/64 is a part of fd00::/16 on uplink";
        assert!(outcomes[0].stderr.contains(of_ipv6), "{outcomes:#?}");
        let [a, b] = &pods;
        assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
        assert!(host.pings("10.1.0.2") && host.pings("fd00:1::2"));
        assert_eq!(client_seen(a, b, "10.1.0.3"), "10.1.0.2");
        assert!(outside.pings("10.5.0.5") && host.pings("fd00::6"));
        assert_eq!(client_seen(a, &outside, "10.5.0.6"), "10.5.0.5");
        assert_eq!(network.check(a, &result).ok(), Value::Null);
        network.del(a);
        network.del(b);
    }
}

#[test]
fn bridge_of_the_reference_is_made_again_in_a_wide_network() {
    let host = Host::new();
    let _outside = in_wide_networks(&host);
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let network = host.bridge_v4();
    network.by_reference().add(&a);
    network.add(&b);
    assert!(b.pings("10.1.0.1"));
    // As after a reboot.
    host.ip("link delete cni0");
    let outcome = network.on("ADD", &c).run();
    outcome.ok();
    assert!(outcome.stderr.contains(NOTE), "{outcome:?}");
    assert!(c.pings("10.1.0.1"));
}

#[test]
fn gateway_that_a_neighbour_claims_is_accepted_and_reported() {
    let host = Host::new();
    let outside = in_wide_networks(&host);
    claim_gateways(&host, &outside);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let bridge = host.bridge();
    for (network, pod) in [(host.ptp(), a), (bridge, b)] {
        let outcome = network.on("ADD", &pod).run();
        outcome.ok();
        for gateway in ["10.1.0.1", "fd00:1::1"] {
            let claim = format!("a host there claims {gateway}");
            assert!(outcome.stderr.contains(&claim), "{outcome:?}");
            assert!(pod.pings(gateway));
        }
        network.del(&pod);
    }
}

#[test]
fn gateway_that_a_permanent_neighbour_has_is_refused() {
    let host = Host::new();
    let _outside = in_wide_networks(&host);
    make_bridge(&host);
    set_neighbours(&host, ["10.2.0.1", "fd00:2::1"]);
    for network in plugins(&host) {
        for (address, gateway, network_of_link) in [
            ("10.2.0.9/24", "10.2.0.1", "10.0.0.0/8"),
            ("fd00:2::9/64", "fd00:2::1", "fd00::/16"),
        ] {
            let words = [gateway, network_of_link, "uplink", "permanent neighbour"];
            refused(&host, &leasing(&network, address, gateway), &words);
        }
    }
}

#[test]
fn gateway_that_is_a_next_hop_is_refused() {
    let host = Host::new();
    let _outside = in_wide_networks(&host);
    make_bridge(&host);
    host.ip("route add 198.51.100.0/24 via 10.2.0.1 dev uplink");
    let several = "nexthop via 10.5.0.6 dev uplink nexthop via 10.3.0.1 dev uplink";
    host.ip(&format!("route add 203.0.113.0/24 {several}"));
    for network in plugins(&host) {
        for (address, gateway) in [("10.2.0.9/24", "10.2.0.1"), ("10.3.0.9/24", "10.3.0.1")] {
            let words = [gateway, "10.0.0.0/8", "uplink", "next hop"];
            refused(&host, &leasing(&network, address, gateway), &words);
        }
    }
}

#[test]
fn subnet_that_is_no_part_of_the_other_links_network_is_refused() {
    let host = Host::new();
    let _outside = in_wide_networks(&host);
    make_bridge(&host);
    for network in plugins(&host) {
        let words = ["10.2.0.1", "10.0.0.0/8", "uplink", "may be in use"];
        refused(&host, &leasing(&network, "10.2.0.9/8", "10.2.0.1"), &words);
        refused(&host, &leasing(&network, "10.2.0.9/7", "10.2.0.1"), &words);
    }
    // A single address with a gateway beside it is no subnet.
    let single = leasing(&host.ptp(), "10.2.0.9/32", "10.2.0.1");
    refused(&host, &single, &["10.2.0.1", "10.0.0.0/8", "uplink"]);
}

#[test]
fn gateway_that_no_neighbour_answered_for_is_accepted() {
    let host = Host::new();
    let _outside = in_wide_networks(&host);
    assert!(!host.pings("10.1.0.1"));
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.ptp().add(&a);
    assert!(a.pings("10.1.0.1"));
    host.ptp().del(&a);
    host.bridge().add(&b);
    assert!(b.pings("10.1.0.1"));
}

#[test]
fn doctor_reports_a_problem_only_where_add_refuses_the_gateway() {
    for plugin in 0..2 {
        let host = Host::new();
        let outside = in_wide_networks(&host);
        let tool = host.tool();
        let network = plugins(&host)[plugin].clone();
        tool.configure("pods", &[network.config().clone()]);
        set_neighbours(&host, ["10.1.0.1", "fd00:1::1"]);
        let words = [
            "10.1.0.0/24 of pods",
            "10.5.0.5/8 on uplink",
            "permanent neighbour",
        ];
        tool.doctor().expect("problem", "range", &words);
        let a = host.sandbox("a");
        let refusal = network.on("ADD", &a).error();
        refusal.expect(7, &["10.1.0.1", "permanent neighbour"]);
        host.ip("neighbour flush dev uplink nud permanent");
        claim_gateways(&host, &outside);
        let claim = "a host there claims 10.1.0.1";
        let words = [words[0], words[1], claim];
        tool.doctor().expect("warning", "range", &words);
        assert!(!tool.doctor().holds("problem", "range", &[]));
        let outcome = tool.on("add", "pods", &a).run();
        assert!(
            outcome.status.success() && outcome.stderr.contains(NOTE),
            "{outcome:?}"
        );
        assert!(!tool.doctor().holds("problem", "range", &[]));
    }
}
