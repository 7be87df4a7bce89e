//! bridge ADD: objects that it creates, and their names.

use serde_json::{Value, json};
use tests::{Host, Place as _};

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn flags(link: &Value) -> Vec<&str> {
    link["flags"].as_array().unwrap().iter().map(text).collect()
}

#[test]
fn the_result_reports_bridge_host_link_and_container_link_as_they_are() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge().with("cniVersion", "1.1.0").add(&a);
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 3, "{result}");
    for (index, link) in [
        host.link("cni0"),
        host.link(text(&interfaces[1]["name"])),
        a.link("eth0"),
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(interfaces[index]["name"], link["ifname"]);
        assert_eq!(interfaces[index]["mac"], link["address"]);
        assert_eq!(interfaces[index]["mtu"], link["mtu"]);
    }
    assert_eq!(interfaces[2]["sandbox"], json!(a.path()));
    assert_eq!(interfaces[0]["sandbox"], Value::Null);
    let ips = json!([
        {"interface": 2, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
        {"interface": 2, "address": "fd00:1::2/64", "gateway": "fd00:1::1"},
    ]);
    assert_eq!(result["ips"], ips);
}

#[test]
fn the_host_link_is_a_port_of_the_bridge_and_the_container_links_peer() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge().add(&a);
    let host_link = host.link(text(&result["interfaces"][1]["name"]));
    assert_eq!(host_link["master"], "cni0");
    assert_eq!(host_link["linkinfo"]["info_kind"], "veth");
    let container_link = a.link("eth0");
    assert_eq!(container_link["link_index"], host_link["ifindex"]);
    assert_eq!(host_link["link_index"], container_link["ifindex"]);
    assert_eq!(a.links(), ["eth0", "lo"]);
    assert_eq!(host.link("cni0")["linkinfo"]["info_kind"], "bridge");
}

#[test]
fn the_host_links_name_follows_from_the_attachment() {
    let host = Host::new();
    let a = host.sandbox("a");
    let name = |result: &Value| text(&result["interfaces"][1]["name"]).to_owned();
    let first = name(&host.bridge().add(&a));
    let digits = first.strip_prefix("veth").unwrap();
    assert_eq!(digits.len(), 11, "{first}");
    assert!(
        digits
            .chars()
            .all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
        "{first}"
    );
    host.bridge().del(&a);
    assert_eq!(
        name(&host.bridge().add(&a)),
        first,
        "the same attachment has the same name"
    );
    let second = host.bridge().on("ADD", &a).ifname("eth1").ok();
    assert_ne!(name(&second), first);
    let other = host
        .bridge()
        .with("name", "other")
        .with("ipam.ranges", json!([[{"subnet": "fd00:2::/64"}]]));
    assert_ne!(name(&other.on("ADD", &a).ifname("eth2").ok()), first);
}

#[test]
fn the_host_links_alias_names_the_attachment_in_clear() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge().add(&a);
    let host_link = host.link(text(&result["interfaces"][1]["name"]));
    assert_eq!(host_link["ifalias"], "cni:pods/a/eth0");
}

#[test]
fn a_container_id_of_any_length_fits() {
    let host = Host::new();
    let a = host.sandbox("a");
    let id = "0123456789abcdef".repeat(16);
    let network = host.bridge_v4();
    let result = network.on("ADD", &a).container(&id).ok();
    let host_link = host.link(text(&result["interfaces"][1]["name"]));
    let alias = text(&host_link["ifalias"]);
    assert!(
        alias.starts_with("cni:") && alias.ends_with("/eth0") && alias.len() < 255,
        "{alias}"
    );
    assert!(a.pings("10.1.0.1"));
    network
        .on("DEL", &a)
        .container(&id)
        .without("CNI_NETNS")
        .ok();
    assert_eq!(host.links(), ["cni0", "lo"]);
}

#[test]
fn the_container_link_is_ready_when_add_returns() {
    let host = Host::new();
    for (name, network) in [("a", host.bridge()), ("b", host.bridge_v4())] {
        let sandbox = host.sandbox(name);
        network.add(&sandbox);
        let link = sandbox.link("eth0");
        assert_eq!(link["operstate"], "UP", "{link}");
        let link_local = sandbox.link_local_addresses("eth0");
        assert_eq!(link_local.len(), 1, "{link_local:?}");
        let tentative = sandbox.ip("-6 address show dev eth0 tentative");
        assert_eq!(tentative, "");
    }
}

#[test]
fn the_link_local_address_follows_from_the_mac_and_survives_a_flap() {
    let host = Host::new();
    for (name, network) in [("a", host.bridge()), ("b", host.bridge_v4())] {
        let sandbox = host.sandbox(name);
        let network = network.with("args.cni.mac", "0a:00:00:00:00:0b");
        network.add(&sandbox);
        let expected = ["fe80::800:ff:fe00:b/64"];
        assert_eq!(sandbox.link_local_addresses("eth0"), expected);
        sandbox.ip("link set eth0 down");
        sandbox.ip("link set eth0 up");
        let is_back = || sandbox.link_local_addresses("eth0") == expected;
        assert!(tests::eventually(is_back), "{name}");
        network.del(&sandbox);
    }
}

#[test]
fn a_sandbox_with_a_secret_or_without_addresses_keeps_its_ways() {
    let host = Host::new();
    let secret = host.sandbox("secret");
    secret.set_sysctl("net/ipv6/conf/default/stable_secret", "2001:db8::1:2:3:4");
    let none = host.sandbox("none");
    none.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    let without = host.sandbox("without");
    without.set_sysctl("net/ipv6/conf/default/addr_gen_mode", "2");
    host.bridge().add(&without);
    assert!(without.link_local_addresses("eth0").is_empty());
    for sandbox in [&secret, &none] {
        host.bridge_v4().add(sandbox);
    }
    let [address] = &secret.link_local_addresses("eth0")[..] else {
        panic!("one link-local address");
    };
    let mode = secret.sysctl("net/ipv6/conf/eth0/addr_gen_mode").unwrap();
    assert_eq!(mode, "2");
    assert!(!address.contains("ff:fe"), "{address} follows from the MAC");
    assert!(none.link_local_addresses("eth0").is_empty());
    assert_eq!(none.sysctl("net/ipv6/conf/eth0/disable_ipv6").unwrap(), "1");
}

#[test]
fn the_bridge_is_cni0_unless_named() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().without("bridge").add(&a);
    assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    let b = host.sandbox("b");
    let named = host
        .bridge_v4()
        .with("bridge", "br-other")
        .with("name", "other");
    let named = named.with("ipam.ranges", json!([[{"subnet": "10.2.0.0/24"}]]));
    named.add(&b);
    assert_eq!(host.addresses("br-other"), ["10.2.0.1/24"]);
}

#[test]
fn a_bridge_that_is_no_gateway_has_no_address_and_forwards_nothing() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.bridge().with("isGateway", false);
    let result = network.add(&a);
    network.add(&b);
    assert_eq!(host.addresses("cni0"), Vec::<String>::new());
    assert_eq!(host.sysctl("net/ipv4/ip_forward").unwrap(), "0");
    assert_eq!(host.sysctl("net/ipv6/conf/all/forwarding").unwrap(), "0");
    assert!(a.pings("10.1.0.3") && a.pings("fd00:1::3"));
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1", "as the lease says");
}

#[test]
fn a_default_gateway_gives_a_default_route_of_each_family() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host
        .bridge()
        .without("isGateway")
        .with("isDefaultGateway", true);
    let result = network.add(&a);
    assert_eq!(a.default_gateways(), ["10.1.0.1", "fd00:1::1"]);
    assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    let routes =
        json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0", "gw": "fd00:1::1"}]);
    assert_eq!(result["routes"], routes);
}

#[test]
fn a_default_gateway_fills_in_a_default_route_without_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge().with("isDefaultGateway", true);
    let network = network.with(
        "ipam.routes",
        json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]),
    );
    network.add(&a);
    assert_eq!(a.default_gateways(), ["10.1.0.1", "fd00:1::1"]);
}

#[test]
fn routes_go_by_their_gateway_or_by_the_lease() {
    let host = Host::new();
    let a = host.sandbox("a");
    let routes = json!([
        {"dst": "0.0.0.0/0"},
        {"dst": "10.9.0.0/16", "gw": "10.1.0.99"},
        {"dst": "fd00:9::/48", "gw": "fd00:1::99"},
    ]);
    host.bridge().with("ipam.routes", routes).add(&a);
    let found = a.routes();
    let gateway =
        |dst: &str| found.iter().find(|route| route["dst"] == dst).unwrap()["gateway"].clone();
    assert_eq!(gateway("default"), "10.1.0.1");
    assert_eq!(gateway("10.9.0.0/16"), "10.1.0.99");
    assert_eq!(gateway("fd00:9::/48"), "fd00:1::99");
    let default = found
        .iter()
        .find(|route| route["dst"] == "default")
        .unwrap();
    assert_eq!(
        default["prefsrc"],
        Value::Null,
        "no source address: {default}"
    );
}

#[test]
fn routes_have_the_attributes_of_specification_1_1() {
    let host = Host::new();
    let a = host.sandbox("a");
    let route =
        |dst: &str| json!({"dst": dst, "mtu": 1400, "advmss": 1300, "priority": 7, "table": 100});
    let routes =
        json!([route("10.9.0.0/16"), route("fd00:9::/48"), {"dst": "10.8.0.0/16", "priority": 9}]);
    let network = host
        .bridge()
        .with("cniVersion", "1.1.0")
        .with("ipam.routes", routes.clone());
    let result = network.add(&a);
    assert_eq!(result["routes"], routes);
    for family in ["-4", "-6"] {
        let in_table = a.ip_json(&format!("{family} route show table 100"));
        assert_eq!(in_table.len(), 1, "{in_table:?}");
        assert_eq!(in_table[0]["metric"], 7);
        let metrics = &in_table[0]["metrics"][0];
        assert_eq!(
            (&metrics["mtu"], &metrics["advmss"]),
            (&json!(1400), &json!(1300))
        );
    }
    let main = a.ip_json("-4 route show 10.8.0.0/16");
    assert_eq!(main[0]["metric"], 9);
    assert_eq!(network.check(&a, &result).ok(), Value::Null);
}

#[test]
fn hairpin_mode_is_the_ports() {
    let host = Host::new();
    for (name, hairpin) in [("a", true), ("b", false)] {
        let sandbox = host.sandbox(name);
        let result = host.bridge().with("hairpinMode", hairpin).add(&sandbox);
        let port = host.link(text(&result["interfaces"][1]["name"]));
        assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], hairpin);
    }
}

#[test]
fn promiscuous_mode_is_the_bridges() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().add(&a);
    assert!(!flags(&host.link("cni0")).contains(&"PROMISC"));
    let b = host.sandbox("b");
    host.bridge().with("promiscMode", true).add(&b);
    assert!(flags(&host.link("cni0")).contains(&"PROMISC"));
}

#[test]
fn dns_is_the_configurations_or_else_the_leases() {
    let host = Host::new();
    let a = host.sandbox("a");
    let dns = json!({"nameservers": ["192.0.2.53"], "domain": "pods.test", "search": ["a.test"], "options": ["ndots:5"]});
    let result = host.bridge().with("dns", dns.clone()).add(&a);
    assert_eq!(result["dns"], dns);
    let resolv = host.dir().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 192.0.2.54\n").unwrap();
    let b = host.sandbox("b");
    let result = host
        .bridge()
        .with("ipam.resolvConf", resolv.to_str())
        .add(&b);
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.54"]}));
}

#[test]
fn empty_list_asks_for_no_name_resolution_and_an_empty_object_for_the_leases() {
    let host = Host::new();
    let resolv = host.dir().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 192.0.2.54\n").unwrap();
    let network = host.bridge().with("ipam.resolvConf", resolv.to_str());
    let nameservers = |result: &Value| result["dns"]["nameservers"].clone();
    for (name, dns, expected) in [
        ("a", json!({"nameservers": []}), Value::Null),
        ("b", json!({"search": []}), Value::Null),
        ("c", json!({"options": []}), Value::Null),
        ("d", json!({}), json!(["192.0.2.54"])),
        (
            "e",
            json!({"nameservers": null, "domain": ""}),
            json!(["192.0.2.54"]),
        ),
        ("f", Value::Null, json!(["192.0.2.54"])),
    ] {
        let network = network.clone().with("dns", dns.clone());
        let result = network.add(&host.sandbox(name));
        assert_eq!(nameservers(&result), expected, "{dns}");
    }
}

#[test]
fn a_sandbox_may_be_any_path_that_opens_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    let file = std::fs::File::open(a.path()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    let path = format!("/proc/{}/fd/{number}", std::process::id());
    let result = host.bridge().on("ADD", &a).netns(&path).ok();
    assert_eq!(result["interfaces"][2]["sandbox"], path);
    assert!(a.pings("10.1.0.1"));
    host.bridge().on("DEL", &a).netns(&path).ok();
    assert!(!a.has_link("eth0"));
}
