//! macvlan: every verb, traffic, and that the link's record keeps the address of a live pod.

use std::fs;

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// A host whose uplink leads to another one, 10.1.0.1, and its network.
struct Lan {
    host: Host,
    router: Sandbox,
}

impl Lan {
    fn new() -> Self {
        let host = Host::new();
        let router = host.outside();
        router.ip("address add 10.1.0.1/24 dev outside");
        router.ip("address add fd00:1::1/64 dev outside nodad");
        Self { host, router }
    }

    /// Returns the network with both families. The detection of duplicate IPv6 addresses takes a
    /// second or two.
    fn of_both_families(&self) -> Network<'_> {
        self.host.single("macvlan").with("master", "uplink")
    }

    fn network(&self) -> Network<'_> {
        let ranges = json!([[{"subnet": "10.1.0.0/24"}]]);
        self.of_both_families().with("ipam.ranges", ranges)
    }
}

/// Returns the record of the sandbox's eth0 in the network `pods`.
fn record(sandbox: &Sandbox) -> String {
    format!("/run/cni/witness/cni:pods:{}:eth0", sandbox.name())
}

fn has_record(sandbox: &Sandbox) -> bool {
    fs::exists(record(sandbox)).unwrap()
}

#[test]
fn pods_reach_the_network_of_the_card_and_each_other_from_macs_of_their_own() {
    let lan = Lan::new();
    let [a, b] = ["a", "b"].map(|name| lan.host.sandbox(name));
    let network = lan.of_both_families();
    let result = network.add(&a);
    network.add(&b);
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": a.mac("eth0"), "sandbox": a.path()}],
        "ips": [
            {"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"interface": 0, "address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ],
    });
    assert_eq!(result, expected);
    assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
    assert!(a.pings("10.1.0.3") && lan.router.pings("10.1.0.2"));
    assert_ne!(a.mac("eth0"), b.mac("eth0"));
    assert_eq!(a.link("eth0")["linkinfo"]["info_kind"], "macvlan");
    network.check(&a, &result).ok();
    for pod in [&a, &b] {
        network.del(pod);
        assert!(!pod.has_link("eth0") && !has_record(pod));
    }
    network.del(&a);
}

#[test]
fn mac_is_that_of_the_attachment_or_the_asked_one() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network();
    let mac = |network: &Network<'_>, args: &str| {
        network.on("ADD", &a).args(args).ok();
        let mac = a.mac("eth0");
        network.del(&a);
        mac
    };
    assert_eq!(mac(&network, ""), mac(&network, ""));
    let configured = network.clone().with("mac", "02:00:00:00:00:07");
    assert_eq!(mac(&configured, ""), "02:00:00:00:00:07");
    assert_eq!(
        mac(&configured, "MAC=02:00:00:00:00:08"),
        "02:00:00:00:00:08"
    );
    let runtime = configured.with("runtimeConfig.mac", "02:00:00:00:00:09");
    assert_eq!(mac(&runtime, "MAC=02:00:00:00:00:08"), "02:00:00:00:00:09");
}

#[test]
fn duplicate_mac_is_refused_and_leaves_nothing() {
    let lan = Lan::new();
    let [a, b] = ["a", "b"].map(|name| lan.host.sandbox(name));
    let network = lan.network().with("mac", "02:00:00:00:00:07");
    network.add(&a);
    network
        .on("ADD", &b)
        .error()
        .expect(100, &["02:00:00:00:00:07", "eth0"]);
    let own = lan.network().with("mac", lan.host.mac("uplink"));
    own.on("ADD", &b)
        .error()
        .expect(100, &["the parent", "has the MAC"]);
    assert!(!b.has_link("eth0") && !has_record(&b));
    assert_eq!(lan.host.leases("pods").len(), 1);
}

#[test]
fn each_mode_has_its_effect() {
    let lan = Lan::new();
    let [a, b] = ["a", "b"].map(|name| lan.host.sandbox(name));
    for (mode, reaches) in [("bridge", true), ("private", false), ("vepa", false)] {
        let network = lan.network().with("mode", mode);
        for pod in [&a, &b] {
            network.add(pod);
            let found = &pod.link("eth0")["linkinfo"]["info_data"]["mode"];
            assert_eq!(found, mode);
        }
        assert!(a.pings("10.1.0.1"), "{mode}");
        let to = b.addresses("eth0");
        let to = to[0].split('/').next().unwrap();
        assert_eq!(a.pings(to), reaches, "{mode}");
        network.del(&a);
        network.del(&b);
    }
    let alone = lan.network().with("mode", "passthru");
    alone.add(&a);
    assert_eq!(a.mac("eth0"), lan.host.mac("uplink"));
    assert!(a.pings("10.1.0.1"));
    let refused = alone.on("ADD", &b).error();
    assert!(refused.mentions("passthru of uplink"), "{refused:?}");
    assert!(!has_record(&b));
}

#[test]
fn keys_are_checked_and_nothing_is_left() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    for (key, value, words) in [
        ("master", json!("nic9"), ["nic9", "on the host"]),
        ("mtu", json!(1501), ["1501", "1500 bytes of uplink"]),
        ("mtu", json!(60), ["mtu", "60"]),
        ("mode", json!("bridged"), ["bridged", "vepa"]),
        ("mac", json!("01:00:5e:00:00:01"), ["mac", "unicast"]),
        ("linkInContainer", json!(true), ["uplink", "in the sandbox"]),
    ] {
        let network = lan.network().with(key, value);
        network.on("ADD", &a).error().expect(7, &words);
        assert!(!a.has_link("eth0") && !has_record(&a), "{key}");
    }
    let mac = lan.network().with("mode", "passthru").with("mac", "02::1");
    mac.on("ADD", &a).error().expect(7, &["mac"]);
    let queue = lan.network().with("bcqueuelen", 2000).with("mtu", 1400);
    queue.add(&a);
    let link = a.link("eth0");
    assert_eq!(link["mtu"], 1400);
    assert_eq!(link["linkinfo"]["info_data"]["bcqueuelen"], 2000);
}

#[test]
fn master_is_the_link_of_the_default_route_or_of_the_plugin_before() {
    let lan = Lan::new();
    let [a, b] = ["a", "b"].map(|name| lan.host.sandbox(name));
    let network = lan.network().without("master");
    network
        .on("ADD", &a)
        .error()
        .expect(7, &["master", "default route"]);
    lan.host.ip("route add default via 192.0.2.2");
    // As wg-quick routes all packets into its tunnel.
    lan.host.ip("tuntap add wg0 mode tun");
    lan.host.ip("link set wg0 up");
    lan.host.ip("route add default dev wg0 table 51820");
    lan.host.ip("rule add not fwmark 1 lookup 51820");
    // A second card with routes of its own.
    lan.host.ip("link add second type veth peer name far");
    lan.host.ip("link set second up");
    lan.host.ip("route add default dev second table 10");
    network.add(&a);
    assert!(a.pings("10.1.0.1"));
    let before = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "other"}],
        "ips": [{"address": "198.51.100.1/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "198.51.100.2"}],
        "dns": {"nameservers": ["198.51.100.3"]},
    });
    lan.host.ip("link add other type veth peer name end");
    let chained = network.clone().with("prevResult", before);
    let result = chained.add(&b);
    let parent = b.link("eth0")["link_index"].clone();
    assert_eq!(parent, lan.host.link("other")["ifindex"]);
    assert_eq!(result["interfaces"][0], json!({"name": "other"}));
    assert_eq!(result["interfaces"][1]["name"], "eth0");
    assert_eq!(result["dns"]["nameservers"], json!(["198.51.100.3"]));
    chained.check(&b, &result).ok();
    let places: Vec<_> = result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["interface"])
        .collect();
    assert_eq!(places, [0, 1]);
}

#[test]
fn link_in_container_has_its_master_there() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    lan.network().add(&a);
    let inner = lan
        .network()
        .with("master", "eth0")
        .with("linkInContainer", true);
    let result = inner.on("ADD", &a).ifname("net1").ok();
    // The kernel makes a macvlan link of the master's own parent.
    let parent = lan.host.link("uplink")["ifindex"].clone();
    assert_eq!(a.link("net1")["link_index"], parent);
    let check = inner.clone().with("prevResult", result);
    check.on("CHECK", &a).ifname("net1").ok();
    inner.on("DEL", &a).ifname("net1").ok();
    assert!(!a.has_link("net1") && a.has_link("eth0"));
}

#[test]
fn without_ipam_the_link_is_up_and_has_no_address() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network().without("ipam");
    let result = network.add(&a);
    assert_eq!(result["ips"], Value::Null);
    assert_eq!(a.link("eth0")["operstate"], "UP");
    assert_eq!(a.addresses("eth0"), Vec::<String>::new());
    network.check(&a, &result).ok();
}

#[test]
fn check_names_each_difference() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network();
    let result = network.add(&a);
    let differs = |change: &str, back: &str, words: &str| {
        a.ip(change);
        network.check(&a, &result).error().expect(100, &[words]);
        if !back.is_empty() {
            a.ip(back);
            network.check(&a, &result).ok();
        }
    };
    let mac = a.mac("eth0");
    differs(
        "link set eth0 down",
        "link set eth0 up",
        "eth0 in the sandbox is down",
    );
    differs(
        "address del 10.1.0.2/24 dev eth0",
        "address add 10.1.0.2/24 dev eth0",
        "lacks address 10.1.0.2/24",
    );
    let back = format!("link set eth0 address {mac}");
    differs(
        "link set eth0 address 02:00:00:00:00:01",
        &back,
        "has MAC 02:00:00:00:00:01",
    );
    let other = network.clone().with("mode", "vepa");
    other
        .check(&a, &result)
        .error()
        .expect(100, &["macvlan in mode bridge"]);
    let other = network.clone().with("master", "lo");
    other
        .check(&a, &result)
        .error()
        .expect(100, &["not a link of lo"]);
    differs("link del eth0", "", "eth0 in the sandbox is gone");
}

#[test]
fn check_accepts_another_mac_of_the_master_in_passthru() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network().with("mode", "passthru");
    let result = network.add(&a);
    lan.host.ip("link set uplink address 02:00:00:00:00:01");
    assert_eq!(a.mac("eth0"), "02:00:00:00:00:01");
    network.check(&a, &result).ok();
}

#[test]
fn second_add_is_refused_and_changes_nothing() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network();
    let result = network.add(&a);
    network
        .on("ADD", &a)
        .error()
        .expect(100, &["attached already by eth0", "DEL it first"]);
    network.check(&a, &result).ok();
    assert!(has_record(&a));
    let b = lan.host.sandbox("b");
    b.ip("link add eth0 type bridge");
    network
        .on("ADD", &b)
        .error()
        .expect(100, &["has an interface eth0 already"]);
    network.del(&b);
    assert!(b.has_link("eth0"), "another program's link stays");
}

#[test]
fn del_without_sandbox_keeps_the_lease_of_a_live_pod_until_gc() {
    let lan = Lan::new();
    let [a, b] = ["a", "b"].map(|name| lan.host.sandbox(name));
    let network = lan.network();
    network.add(&a);
    let leases = lan.host.leases("pods");
    let outcome = network.call("DEL").container("a").ifname("eth0").run();
    outcome.ok();
    assert!(outcome.stderr.contains("its sandbox exists"), "{outcome:?}");
    assert_eq!(lan.host.leases("pods"), leases);
    network.add(&b);
    assert!(a.pings("10.1.0.1") && b.pings("10.1.0.2"));
    network.gc(&[&b]).ok();
    assert!(!a.has_link("eth0") && !has_record(&a));
    assert!(b.pings("10.1.0.1") && has_record(&b));
    assert!(!lan.host.leases("pods").contains_key("10.1.0.2"));
}

#[test]
fn del_after_the_sandbox_releases_the_lease() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network();
    network.add(&a);
    a.remove();
    network.call("DEL").container("a").ifname("eth0").ok();
    assert!(!has_record(&a) && !lan.host.leases("pods").contains_key("10.1.0.2"));
}

#[test]
fn another_sandbox_at_the_path_is_left_alone() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network();
    network.add(&a);
    a.renew();
    let index = lan.host.link("uplink")["ifindex"].clone();
    lan.host
        .ip("link add eth0 netns a link uplink type macvlan mode bridge");
    network.del(&a);
    assert_eq!(
        a.link("eth0")["link_index"],
        index,
        "the link of another sandbox stays"
    );
    assert!(!has_record(&a));
}

/// The link of a sandbox without processes is found by the number of its namespace.
#[test]
fn del_with_the_path_of_an_ended_process_deletes_the_link() {
    let lan = Lan::new();
    let a = lan.host.sandbox("a");
    let network = lan.network();
    let inhabitant = a.inhabitant();
    let path = inhabitant.netns();
    let call = |verb| network.call(verb).container("a").ifname("eth0");
    call("ADD").netns(&path).ok();
    drop(inhabitant);
    assert!(a.pings("10.1.0.1"));
    call("DEL").netns(&path).ok();
    assert!(!a.has_link("eth0") && !has_record(&a));
    assert!(lan.host.leases("pods").is_empty());
}

#[test]
fn status_names_a_missing_master() {
    let lan = Lan::new();
    let newest = lan.network().with("cniVersion", "1.1.0");
    newest.call("STATUS").ok();
    let missing = newest.with("master", "nic9");
    missing.call("STATUS").error().expect(50, &["nic9"]);
}
