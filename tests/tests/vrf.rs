//! vrf: addresses and routes in the VRF, several interfaces and VRFs, and DEL. Needs a kernel with
//! VRFs: `.ci/run` runs this file in a virtual machine.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use tests::interface::Interface;
use tests::{Example, Host, Network, Outcome, Place as _, Sandbox, eventually};

fn vrf<'h>(interface: &Interface<'h>, name: &str) -> Network<'h> {
    interface.chained("vrf").with("vrfname", name)
}

fn joined<'h>(host: &'h Host, a: &Sandbox, number: u8, name: &str) -> Interface<'h> {
    let interface = Interface::new(host, a, number);
    let result = interface.run("ADD", &vrf(&interface, name), a).ok();
    assert_eq!(result, interface.result, "the result is passed on");
    interface
}

/// Returns the routes of both families in all tables, without link-local ones.
fn routes(a: &Sandbox) -> Vec<String> {
    let all = ["", "-6 "].map(|family| a.ip(&format!("{family}route show table all")));
    let lines = all.iter().flat_map(|it| it.lines());
    let lines = lines.filter(|it| !it.contains("fe80") && !it.contains("ff00"));
    let mut lines: Vec<_> = lines.map(|it| it.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// Returns the routes of a table, of both families.
fn table(a: &Sandbox, number: u32) -> String {
    let table = format!(" table {number} ");
    let lines = routes(a).into_iter().map(|it| format!("{it} "));
    let of_table = lines.filter(|it| it.contains(&table));
    of_table.map(|it| it.replace(&table, " ") + "\n").collect()
}

fn master(a: &Sandbox, interface: &str) -> Value {
    a.link(interface)["master"].clone()
}

#[test]
fn addresses_and_routes_move_into_the_vrf_and_back() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    a.ip("route add 10.9.0.0/16 via 10.1.0.1 mtu 1300 metric 7 proto 99");
    a.ip("route add 10.8.0.0/16 dev net1 scope link");
    a.ip("-6 route add fd00:9::/64 via fd00:1::1 metric 7");
    a.ip("-6 address add fd00:1::99/64 dev net1 nodad metric 300");
    let before = routes(&a);
    let network = interface.chained("vrf").with("VrfName", "blue");
    for _ in 0..2 {
        assert_eq!(interface.run("ADD", &network, &a).ok(), interface.result);
        assert_eq!(master(&a, "net1"), "blue");
        let inside = table(&a, 1);
        for route in [
            "default via 10.1.0.1 dev net1",
            "default via fd00:1::1 dev net1",
            "10.9.0.0/16 via 10.1.0.1 dev net1 proto openr metric 7 mtu 1300",
            "10.8.0.0/16 dev net1 scope link",
            "10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.2",
            "fd00:9::/64 via fd00:1::1 dev net1 metric 7",
            "fd00:1::/64 dev net1 proto kernel metric 256",
            "fd00:1::/64 dev net1 proto kernel metric 300",
        ] {
            assert!(inside.contains(route), "{route}: {inside}");
        }
    }
    assert_eq!(a.ip("route"), "", "nothing is left outside");
    let addresses = a.ip("-6 address show dev net1");
    assert!(!addresses.contains("tentative fd00"), "{addresses}");
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        a.run("ping", &["-n", "-c", "1", "-W", "5", "-I", "blue", gateway]);
    }
    assert!(host.pings("10.1.0.2") && host.pings("fd00:1::2"));
    assert_eq!(interface.run("CHECK", &network, &a).ok(), Value::Null);
    let check = interface.bridge.check(&a, &interface.result);
    assert_eq!(check.ifname("net1").ok(), Value::Null);
    interface.run("DEL", &network, &a).ok();
    // The kernel adds local routes of IPv6 addresses in the background.
    assert!(eventually(|| routes(&a) == before), "{:?}", routes(&a));
    assert!(!a.has_link("blue"));
    interface.run("DEL", &network, &a).ok();
}

/// The kernel makes one multipath route of two IPv6 default routes of the same metric.
#[test]
fn next_hops_of_multipath_routes_move_without_those_of_other_interfaces() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [_, second] = [1, 2].map(|number| Interface::new(&host, &a, number));
    for family in ["", "-6 "] {
        a.ip(&format!("{family}route flush default"));
    }
    a.ip("-6 route add default via fd00:1::1 dev net1");
    a.ip("-6 route append default via fd00:2::1 dev net2");
    a.ip("-6 route add fd00:9::/64 nexthop via fd00:2::1 dev net2 nexthop via fd00:2::3 dev net2");
    a.ip("route add default nexthop via 10.1.0.1 dev net1 nexthop via 10.2.0.1 dev net2 weight 3");
    a.ip("route add 10.9.0.0/16 nexthop via 10.2.0.1 dev net2 nexthop via 10.2.0.3 dev net2 weight 2");
    let network = vrf(&second, "blue");
    second.run("ADD", &network, &a).ok();
    let outside = a.ip("route") + &a.ip("-6 route");
    assert!(outside.contains("via fd00:1::1 dev net1"), "{outside}");
    assert!(outside.contains("via 10.1.0.1 dev net1"), "{outside}");
    assert!(!outside.contains("net2"), "{outside}");
    let inside = a.ip("route show vrf blue") + &a.ip("-6 route show vrf blue");
    for hop in [
        "via 10.2.0.1 dev net2",
        "via 10.2.0.3 dev net2 weight 2",
        "via fd00:2::1 dev net2",
        "via fd00:2::3 dev net2",
    ] {
        assert!(inside.contains(hop), "{inside}");
    }
    assert!(!inside.contains("net1"), "{inside}");
    let closed = ["sh", "-c", "exec \"$@\" >/dev/full", "sh"].map(str::to_owned);
    second.run("DEL", &network, &a).ok();
    assert!(!a.has_link("blue"));
    let call = network.on("ADD", &a).ifname("net2").under(&closed);
    let now = routes(&a);
    assert!(!call.run().status.success());
    let are_restored = eventually(|| routes(&a) == now);
    assert!(are_restored, "a failed ADD restores the routes");
    assert!(!a.has_link("blue") && !Path::new("/run/cni/vrf/cni:n2:a:net2").exists());
    a.ip("link add blue type vrf table 7");
    assert!(!call.run().status.success());
    assert!(a.has_link("blue"), "a failed ADD keeps the VRF of others");
}

#[test]
fn routes_of_other_tables_stay_there_and_replaced_subnet_routes_stay_away() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    a.ip("route add default via 10.1.0.1 table 100");
    a.ip("route delete 10.1.0.0/24 dev net1");
    a.ip("route add 10.1.0.1 dev net1 scope link");
    a.ip("route add 10.1.0.0/24 via 10.1.0.1");
    interface.run("ADD", &vrf(&interface, "blue"), &a).ok();
    assert!(table(&a, 100).contains("default via 10.1.0.1 dev net1"));
    let inside = table(&a, 1);
    assert!(
        inside.contains("10.1.0.0/24 via 10.1.0.1 dev net1"),
        "{inside}"
    );
    assert!(!inside.contains("10.1.0.0/24 dev net1"), "{inside}");
}

#[test]
fn interfaces_of_one_vrf_share_its_table_until_the_last_one_leaves() {
    let host = Host::new();
    let a = host.sandbox("a");
    let first = joined(&host, &a, 1, "blue");
    let second = joined(&host, &a, 2, "blue");
    let third = joined(&host, &a, 3, "red");
    assert!(table(&a, 1).contains("dev net1") && table(&a, 1).contains("dev net2"));
    assert!(table(&a, 2).contains("default via 10.3.0.1 dev net3"));
    first.run("DEL", &vrf(&first, "blue"), &a).ok();
    assert_eq!(master(&a, "net2"), "blue");
    let forgotten = vrf(&second, "blue").without("prevResult");
    let forgotten = forgotten.on("DEL", &a).ifname("net2").without("CNI_NETNS");
    forgotten.ok();
    assert!(!a.has_link("blue") && a.has_link("net2"));
    a.ip("link delete net3");
    let network = vrf(&third, "red").without("prevResult");
    network.clone().gc(&[]).ok();
    assert!(!a.has_link("red"));
    assert_eq!(std::fs::read_dir("/run/cni/vrf").unwrap().count(), 0);
}

#[test]
fn concurrent_adds_get_tables_of_their_own() {
    let host = Host::new();
    let a = host.sandbox("a");
    a.ip("route add blackhole 10.9.0.0/16 table 1");
    let interfaces: Vec<_> = (1..=4)
        .map(|number| Interface::new(&host, &a, number))
        .collect();
    let name = |number: u8| ["even", "odd1", "even", "odd3"][usize::from(number - 1)];
    let calls = interfaces.iter().map(|it| {
        let network = vrf(it, name(it.number));
        network.on("ADD", &a).ifname(&it.name)
    });
    let calls: Vec<_> = calls.collect();
    thread::scope(|scope| {
        let started: Vec<_> = calls.iter().map(|it| scope.spawn(|| it.ok())).collect();
        for it in started {
            it.join().unwrap();
        }
    });
    let links = a.ip_json("-details link show type vrf");
    let tables = links
        .iter()
        .map(|it| it["linkinfo"]["info_data"]["table"].as_u64().unwrap());
    let tables: BTreeSet<_> = tables.collect();
    assert!(tables.len() == 3 && !tables.contains(&1), "{tables:?}");
    for it in &interfaces {
        assert_eq!(
            it.run("CHECK", &vrf(it, name(it.number)), &a).ok(),
            Value::Null
        );
    }
}

fn refused(outcome: &Outcome, code: u64, words: &[&str]) {
    outcome.error().expect(code, words);
}

#[test]
fn invalid_values_are_refused_before_anything_changes() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    let before = routes(&a);
    let add = |network: &Network<'_>| interface.run("ADD", network, &a);
    for name in ["", "a b", "sixteen-letters."] {
        refused(&add(&vrf(&interface, name)), 7, &["vrfname"]);
    }
    refused(&add(&interface.chained("vrf")), 7, &["vrfname: missing"]);
    let network = vrf(&interface, "blue");
    refused(&add(&network.clone().with("table", -1)), 7, &["table"]);
    refused(&add(&network.without("prevResult")), 7, &["prevResult"]);
    let network = vrf(&interface, "net1");
    refused(&add(&network), 100, &["net1 is no VRF", "veth"]);
    assert_eq!(routes(&a), before);
    assert!(!Path::new("/run/cni/vrf").exists());
}

#[test]
fn another_table_and_another_master_are_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [first, second] = [1, 2].map(|number| Interface::new(&host, &a, number));
    let network = vrf(&first, "blue").with("table", 4_000_000_000_u32);
    first.run("ADD", &network, &a).ok();
    assert!(table(&a, 4_000_000_000).contains("default via 10.1.0.1"));
    let network = vrf(&second, "blue").with("table", 9);
    let words = ["blue has the table 4000000000, not 9"];
    refused(&second.run("ADD", &network, &a), 100, &words);
    let add = first.run("ADD", &vrf(&first, "red"), &a);
    refused(&add, 100, &["net1 has the master blue", "red"]);
    assert!(!a.has_link("red") && master(&a, "net2").is_null());
    let check = second.run("CHECK", &vrf(&second, "blue"), &a);
    refused(&check, 100, &["net2 is not in the VRF blue"]);
    let check = second.run("CHECK", &vrf(&second, "red"), &a);
    refused(&check, 100, &["red does not exist"]);
}

#[test]
fn del_removes_the_vrf_of_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    let network = vrf(&interface, "blue");
    interface.run("ADD", &network.by_reference(), &a).ok();
    assert_eq!(interface.run("CHECK", &network, &a).ok(), Value::Null);
    interface
        .run("DEL", &network.with("prevResult", json!(null)), &a)
        .ok();
    assert!(!a.has_link("blue"));
    assert!(a.ip("route").contains("10.1.0.0/24 dev net1"));
}

#[test]
fn example_puts_the_interface_into_a_vrf() {
    let host = Host::new();
    let pods = Example::list(&host, "vrf.conflist").pods();
    let routes = pods.a.ip("-6 route show vrf blue");
    assert!(routes.contains("default via fd00:80:0:18::1"), "{routes}");
    assert_eq!(pods.a.default_gateways(), Vec::<String>::new());
    assert_eq!(pods.a.links(), ["blue", "eth0", "lo"]);
    pods.detach();
}

#[test]
fn every_verb_works_with_the_capabilities_of_the_readme() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    let network = vrf(&interface, "blue");
    let (net, sys) = ("net_admin", "sys_admin");
    let run = |verb: &str, capabilities: &[&str]| {
        let call = network.on(verb, &a).ifname("net1");
        call.with_capabilities(capabilities).run()
    };
    for (lacking, name) in [([net], "CAP_SYS_ADMIN"), ([sys], "CAP_NET_ADMIN")] {
        let refusal = run("ADD", &lacking);
        assert!(
            !refusal.status.success() && refusal.stdout.contains(name),
            "{refusal:?}"
        );
        assert!(!a.has_link("blue") && !Path::new("/run/cni/vrf/cni:n1:a:net1").exists());
    }
    run("ADD", &[net, sys]).ok();
    run("CHECK", &[sys]).ok();
    run("DEL", &[net, sys]).ok();
    assert!(!a.has_link("blue"));
}
