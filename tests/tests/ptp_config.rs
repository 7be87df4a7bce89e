//! ptp: rejected configurations, their codes, and that nothing is left; keys without other tests.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// Checks that ADD is refused with `code` and these words, and leaves nothing.
#[track_caller]
fn refused(host: &Host, network: &Network<'_>, sandbox: &Sandbox, expected: (u64, &[&str])) {
    let before = host.snapshot();
    let refusal = network.on("ADD", sandbox).error();
    refusal.expect(expected.0, expected.1);
    host.snapshot().assert_same_as(&before);
    assert_eq!(sandbox.links(), ["lo"]);
    assert!(host.leases("pods").is_empty());
}

/// Returns the network with an IPAM plugin that prints `lease`.
fn leasing<'h>(host: &'h Host, lease: &Value) -> Network<'h> {
    let body = format!("[ $CNI_COMMAND != ADD ] || echo '{lease}'");
    host.script("leases", &body);
    host.ptp().with("ipam", json!({"type": "leases"}))
}

#[test]
fn ipam_is_required() {
    let host = Host::new();
    let a = host.sandbox("a");
    refused(
        &host,
        &host.ptp().without("ipam"),
        &a,
        (7, &["ipam", "bridge"]),
    );
    let empty = host.ptp().with("ipam", json!({}));
    refused(&host, &empty, &a, (7, &["ipam"]));
    assert_eq!(empty.on("DEL", &a).ok(), Value::Null);
}

#[test]
fn values_of_a_wrong_kind_are_refused_with_their_key() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (key, value) in [
        ("mtu", json!(67)),
        ("mtu", json!(65536)),
        ("mtu", json!("1500")),
        ("mtu", json!(-1)),
        ("mtuOverhead", json!(1490)),
        ("ipMasq", json!("true")),
        ("ipMasqBackend", json!("nft")),
        ("ipMasqRandomFully", json!(1)),
        ("dns", json!([])),
    ] {
        refused(&host, &host.ptp().with(key, value), &a, (7, &[key]));
    }
    let no_cidr = host.ptp().with("ipMasq", true);
    let no_cidr = no_cidr.with("nonMasqueradeCIDRs", json!(["10.0.0.0/33"]));
    refused(&host, &no_cidr, &a, (7, &["nonMasqueradeCIDRs"]));
    let both = host.ptp().with("mtu", 1400).with("mtuOverhead", 50);
    refused(&host, &both, &a, (7, &["mtuOverhead"]));
    let mac = host.ptp().with("runtimeConfig.mac", "01:00:5e:00:00:01");
    refused(&host, &mac, &a, (7, &["unicast"]));
}

#[test]
fn ipv6_needs_its_smallest_mtu() {
    let host = Host::new();
    let a = host.sandbox("a");
    refused(&host, &host.ptp().with("mtu", 1279), &a, (7, &["1280"]));
}

#[test]
fn lease_that_allows_no_gateway_is_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    let of = |ips: Value| json!({"cniVersion": "1.0.0", "ips": ips});
    let none = leasing(&host, &of(json!([])));
    refused(&host, &none, &a, (7, &["leased no address"]));
    let alone = leasing(&host, &of(json!([{"address": "10.1.0.9/32"}])));
    refused(&host, &alone, &a, (7, &["10.1.0.9/32", "gateway"]));
}

#[test]
fn lease_that_names_an_address_twice_is_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    for [one, other] in [
        ["10.1.0.9/24", "10.1.0.9/24"],
        ["fd00:1::9/64", "fd00:1::9/64"],
        ["fd00:1::9/64", "fd00:1::9/48"],
    ] {
        let ips = json!([{"address": one}, {"address": other}]);
        let lease = leasing(&host, &json!({"cniVersion": "1.0.0", "ips": ips}));
        refused(&host, &lease, &a, (7, &[one, other]));
        let ipam = json!({"type": "static", "addresses": ips});
        let bridge = host.bridge().with("ipam", ipam);
        bridge.on("ADD", &a).error().expect(7, &[one, other]);
        // The reference refuses it, too, but leaves the pair.
        bridge.by_reference().on("ADD", &a).error();
        a.ip("link delete eth0");
        host.ip("link delete cni0");
    }
}

#[test]
fn gateway_of_a_permanent_neighbour_on_another_link_is_refused() {
    let host = Host::new();
    let _outside = host.outside();
    let a = host.sandbox("a");
    let entry = "192.0.2.2 lladdr 02:00:00:00:00:99 dev uplink nud permanent";
    host.ip(&format!("neighbour replace {entry}"));
    for (subnet, gateway) in [
        ("192.0.2.0/25", "192.0.2.2"),
        ("192.0.2.0/24", "192.0.2.254"),
    ] {
        let range = json!([[{"subnet": subnet, "gateway": gateway}]]);
        let taken = host.ptp().with("ipam.ranges", range);
        let taken = taken.with("ipam.routes", json!([]));
        refused(&host, &taken, &a, (7, &[gateway, "uplink"]));
    }
}

#[test]
fn chain_with_an_earlier_interface_is_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    let earlier = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth1", "sandbox": "/x"}]});
    let second = host.ptp().with("prevResult", earlier);
    refused(&host, &second, &a, (7, &["ptp", "first"]));
}

#[test]
fn dns_of_the_configuration_replaces_that_of_the_ipam_plugin() {
    let host = Host::new();
    let file = host.dir().join("resolv.conf");
    std::fs::write(&file, "nameserver 10.1.0.53\nsearch ipam.example\n").unwrap();
    let of_ipam = host.ptp().with("ipam.resolvConf", file.to_str().unwrap());
    let own = json!({"nameservers": ["10.1.0.54"], "domain": "own.example"});
    let nothing = json!({"nameservers": [], "search": [], "options": []});
    for (index, (asked, expected)) in [
        (
            None,
            json!({"nameservers": ["10.1.0.53"], "search": ["ipam.example"]}),
        ),
        (Some(own.clone()), own),
        (Some(nothing), Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        let a = host.sandbox(&format!("a{index}"));
        let network = of_ipam.clone();
        let network = match asked {
            Some(dns) => network.with("dns", dns),
            None => network,
        };
        assert_eq!(network.add(&a)["dns"], expected);
    }
}

#[test]
fn keys_are_read_in_any_case() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ptp().with("MTU", 1400).with("IPMASQ", true).add(&a);
    assert_eq!(a.link("eth0")["mtu"], 1400);
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(rules.contains("cni:pods/a/eth0"), "{rules}");
}
