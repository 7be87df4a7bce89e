//! sbr: the tables and rules that ADD makes, for packets of a pod with two interfaces.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use tests::interface::Interface;
use tests::{Host, Network, Outcome, Place as _, Sandbox};

/// Gives a pod an interface, and routes its packets by their source.
fn routed<'h>(host: &'h Host, a: &Sandbox, number: u8) -> Interface<'h> {
    let interface = Interface::new(host, a, number);
    let result = interface.run("ADD", &interface.chained("sbr"), a).ok();
    assert_eq!(result, interface.result, "the result is passed on");
    interface
}

/// Returns the pod's own rules, of both families, as `SOURCE TABLE`.
fn rules(a: &Sandbox) -> Vec<String> {
    let both = [a.ip("rule"), a.ip("-6 rule")].concat();
    let lines = both.lines().filter(|it| !it.contains("from all"));
    let mut rules: Vec<_> = lines
        .map(|it| {
            it.split_once("from ")
                .unwrap()
                .1
                .trim()
                .replace("lookup ", "")
        })
        .collect();
    rules.sort();
    rules
}

/// Returns all routes of both families that do not come and go by themselves.
fn routes(a: &Sandbox) -> Vec<String> {
    let both = [
        a.ip("route show table all"),
        a.ip("-6 route show table all"),
    ]
    .concat();
    let lines = both
        .lines()
        .filter(|it| !it.contains("fe80") && !it.contains("ff00"));
    let mut lines: Vec<_> = lines.map(|it| it.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// Returns the routes of a table, of both families.
fn table(a: &Sandbox, number: u32) -> String {
    let (all, table) = (routes(a), format!(" table {number} "));
    let of_table = all
        .iter()
        .map(|it| format!("{it} "))
        .filter(|it| it.contains(&table));
    of_table.map(|it| it.replace(&table, " ") + "\n").collect()
}

/// The host forwards a packet only from the bridge that has the packet's source, and another host
/// answers.
#[test]
fn packets_leave_by_the_interface_that_has_their_source() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    outside.ip("route add 10.0.0.0/8 via 192.0.2.1");
    outside.ip("-6 route add fd00::/16 via 2001:db8::1");
    let a = host.sandbox("a");
    let first = Interface::new(&host, &a, 1);
    let second = Interface::new(&host, &a, 2);
    host.run(
        "nft",
        &["add table inet t; add chain inet t c { type filter hook forward priority 0; }"],
    );
    for packets in [
        "cni1 ip saddr 10.2.0.0/24",
        "cni2 ip saddr 10.1.0.0/24",
        "cni1 ip6 saddr fd00:2::/64",
        "cni2 ip6 saddr fd00:1::/64",
    ] {
        host.run(
            "nft",
            &[&format!("add rule inet t c iifname {packets} reject")],
        );
    }
    assert!(!a.pings_from(&second.source(0), "192.0.2.2"));
    for interface in [&first, &second] {
        interface.run("ADD", &interface.chained("sbr"), &a).ok();
    }
    for interface in [&first, &second] {
        assert!(a.pings_from(&interface.source(0), "192.0.2.2"));
        assert!(a.pings_from(&interface.source(1), "2001:db8::2"));
        assert_eq!(
            interface.run("CHECK", &interface.chained("sbr"), &a).ok(),
            Value::Null
        );
        let check = interface.bridge.check(&a, &interface.result);
        assert_eq!(check.ifname(&interface.name).ok(), Value::Null);
    }
}

/// Returns rules, routes and tables of a pod on two networks, with `SOURCE` for its addresses.
fn shown<'h>(host: &'h Host, sbr: impl Fn(&Interface<'h>) -> Network<'h>) -> String {
    let a = host.sandbox("a");
    let interfaces = [1, 2].map(|number| Interface::new(host, &a, number));
    for interface in &interfaces {
        interface.run("ADD", &sbr(interface), &a).ok();
    }
    let v4 = ["100", "102", "main"].map(|it| a.ip(&format!("route show table {it}")));
    let v6 = ["101", "103"].map(|it| a.ip(&format!("-6 route show table {it}")));
    let mut text = [rules(&a).join("\n"), v4.join("\n"), v6.join("\n")].join("\n");
    for interface in &interfaces {
        for is_v4 in [true, false] {
            text = text.replace(&interface.source(usize::from(!is_v4)), "SOURCE");
        }
        interface.bridge.on("DEL", &a).ifname(&interface.name).ok();
    }
    a.remove();
    let lines = text.lines().filter(|it| !it.contains("fe80"));
    lines.map(|it| it.trim_end().to_owned() + "\n").collect()
}

#[test]
fn tables_and_rules_are_those_of_the_reference() {
    let host = Host::new();
    let ours = shown(&host, |it| it.chained("sbr"));
    assert!(ours.contains("default via 10.2.0.1 dev net2"), "{ours}");
    // The reference adds a second default route beside one whose metric is not the kernel's.
    let theirs = shown(&host, |it| it.chained("sbr").by_reference());
    let second = "default via fd00:2::1 dev net2 metric 1024 pref medium\n";
    assert_eq!(ours, theirs.replace(second, ""));
}

/// The pod has rules of its own, and another network with its own sbr.
fn removes(host: &Host, name: &str, remove: impl Fn(&Interface<'_>, &Sandbox) -> Outcome) {
    let a = host.sandbox(name);
    routed(host, &a, 1);
    a.ip("rule add from 10.2.0.99 lookup 7");
    let before = (rules(&a), routes(&a));
    let interface = routed(host, &a, 2);
    assert_eq!(rules(&a).len(), before.0.len() + 2);
    remove(&interface, &a).ok();
    assert_eq!(rules(&a), before.0, "{name}");
    assert_eq!(table(&a, 102) + &table(&a, 103), "", "{name}");
    assert!(
        Path::new("/run/cni/sbr")
            .join(format!("cni:n1:{name}:net1"))
            .exists()
    );
    assert!(
        !Path::new("/run/cni/sbr")
            .join(format!("cni:n2:{name}:net2"))
            .exists()
    );
    interface.run("DEL", &interface.chained("sbr"), &a).ok();
    interface.bridge.on("DEL", &a).ifname("net2").ok();
    assert_eq!((rules(&a), routes(&a)), before, "{name}");
}

#[test]
fn del_removes_what_add_made_and_nothing_else() {
    let host = Host::new();
    removes(&host, "a", |it, a| it.run("DEL", &it.chained("sbr"), a));
    removes(&host, "b", |it, b| {
        let forgotten = it.chained("sbr").without("prevResult").on("DEL", b);
        forgotten.ifname("net2").without("CNI_NETNS").run()
    });
    removes(&host, "c", |it, c| {
        c.ip("link delete net2");
        it.run("DEL", &it.chained("sbr").without("prevResult"), c)
    });
    removes(&host, "d", |it, d| {
        d.ip(&format!("rule delete from {}", it.source(0)));
        d.ip(&format!("rule add from {} lookup 99", "10.2.0.99"));
        let outcome = it.run("DEL", &it.chained("sbr"), d);
        d.ip("rule delete from 10.2.0.99 lookup 99");
        outcome
    });
}

#[test]
fn repeated_del_spares_what_a_later_attachment_has() {
    let host = Host::new();
    let a = host.sandbox("a");
    let call = |verb, interface: &Interface<'_>, container| {
        let call = interface.chained("sbr").on(verb, &a).container(container);
        call.ifname("net1").ok();
    };
    let interface = Interface::new(&host, &a, 1);
    call("ADD", &interface, "a");
    call("DEL", &interface, "a");
    interface.bridge.on("DEL", &a).ifname("net1").ok();
    let interface = Interface::new(&host, &a, 1);
    call("ADD", &interface, "later");
    let later = rules(&a);
    call("DEL", &interface, "a");
    assert_eq!(rules(&a), later);
    call("DEL", &interface, "later");
    assert!(rules(&a).len() < later.len());
}

#[test]
fn gc_removes_what_the_runtime_does_not_list() {
    let host = Host::new();
    removes(&host, "a", |it, a| {
        let listed = json!([{"containerID": "a", "ifname": "net2"}]);
        let network = it
            .chained("sbr")
            .without("prevResult")
            .with("cniVersion", "1.1.0");
        let listing = network
            .clone()
            .with_key("cni.dev/valid-attachments", listed);
        listing.call("GC").ok();
        assert_eq!(rules(a).len(), 5, "the runtime lists it");
        network.gc(&[]).run()
    });
}

#[test]
fn del_removes_the_rules_of_the_reference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    let before = rules(&a);
    interface
        .run("ADD", &interface.chained("sbr").by_reference(), &a)
        .ok();
    assert_eq!(
        interface.run("CHECK", &interface.chained("sbr"), &a).ok(),
        Value::Null
    );
    a.ip("rule add from 10.1.0.99 lookup 100");
    a.ip(&format!(
        "rule add from {} tos 0x10 lookup 100",
        interface.source(0)
    ));
    interface.run("DEL", &interface.chained("sbr"), &a).ok();
    let left = rules(&a);
    assert_eq!(left.len(), before.len() + 2, "{left:?}");
    assert!(
        left[0].contains("tos") || left[1].contains("tos"),
        "{left:?}"
    );
}

#[test]
fn tables_in_use_are_left_to_their_users() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    a.ip("route add blackhole 10.9.0.0/16 table 100");
    a.ip("-6 route add fd00:9::/64 dev net1 table 101");
    a.ip("rule add to 10.9.0.0/16 lookup 103");
    interface.run("ADD", &interface.chained("sbr"), &a).ok();
    assert!(table(&a, 102).contains("default via 10.1.0.1"));
    assert!(table(&a, 104).contains("default via fd00:1::1"));
    interface.run("DEL", &interface.chained("sbr"), &a).ok();
    assert!(table(&a, 100).contains("blackhole") && table(&a, 101).contains("fd00:9::/64"));
}

#[test]
fn concurrent_adds_in_a_sandbox_get_tables_of_their_own() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interfaces: Vec<_> = (1..=8)
        .map(|number| Interface::new(&host, &a, number))
        .collect();
    let calls = interfaces
        .iter()
        .map(|it| it.chained("sbr").on("ADD", &a).ifname(&it.name));
    let calls: Vec<_> = calls.collect();
    thread::scope(|scope| {
        let started: Vec<_> = calls.iter().map(|it| scope.spawn(|| it.ok())).collect();
        for it in started {
            it.join().unwrap();
        }
    });
    let tables = rules(&a)
        .into_iter()
        .map(|it| it.split(' ').next_back().unwrap().to_owned());
    let tables: BTreeSet<_> = tables.collect();
    assert_eq!(tables.len(), 16, "{tables:?}");
    for interface in &interfaces {
        assert_eq!(
            interface.run("CHECK", &interface.chained("sbr"), &a).ok(),
            Value::Null
        );
    }
}

#[test]
fn failed_add_restores_the_sandbox() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    a.ip("route add 10.9.0.0/16 via 10.1.0.1 mtu 1300 proto 99");
    let before = (rules(&a), routes(&a));
    for key in ["10.77.0.1", "fd00:77::1"] {
        let network = interface.chained("sbr").with("gateways", json!([key]));
        let refusal = interface.run("ADD", &network, &a);
        refusal.error().expect(100, &["add route", key]);
        assert_eq!((rules(&a), routes(&a)), before);
        assert!(!Path::new("/run/cni/sbr/cni:n1:a:net1").exists());
    }
    // The runtime does not read the result, so ADD fails at its end.
    let call = interface.chained("sbr").on("ADD", &a).ifname("net1");
    let closed = ["sh", "-c", "exec \"$@\" >/dev/full", "sh"].map(str::to_owned);
    assert!(!call.under(&closed).run().status.success());
    assert_eq!((rules(&a), routes(&a)), before);
}

#[test]
fn second_add_completes_the_first() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = routed(&host, &a, 1);
    let first = (rules(&a), routes(&a));
    interface.run("ADD", &interface.chained("sbr"), &a).ok();
    assert_eq!((rules(&a), routes(&a)), first);
    a.ip(&format!("rule delete from {}", interface.source(0)));
    a.ip("route delete default table 100");
    let check = interface.run("CHECK", &interface.chained("sbr"), &a);
    check.error().expect(
        100,
        &["net1", "10.1.0.2", "for a table with a default route"],
    );
    interface.run("ADD", &interface.chained("sbr"), &a).ok();
    assert_eq!((rules(&a), routes(&a)), first);
    assert_eq!(
        interface.run("CHECK", &interface.chained("sbr"), &a).ok(),
        Value::Null
    );
}
