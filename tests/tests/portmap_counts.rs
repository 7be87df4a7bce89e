//! portmap: a port of every address beside ports of single addresses, which `nf_tables` counts.

use std::fs;

use tests::faults::Trace;
use tests::{Host, Invocation, Network, Place as _, Ports, Sandbox};

const SINGLE: &str = "192.0.2.1:8080:80";
const OTHER: &str = "192.0.2.9:8080:80";
const EVERY: &str = "8080:80";
const COUNTS: &str = "address-port-counts4";

fn counts(host: &Host) -> String {
    let list = |set| host.run("nft", &["list", "map", "inet", "cni-portmap", set]);
    [COUNTS, "address-port-counts6"].map(list).concat()
}

/// The number of addresses that have port 8080.
#[track_caller]
fn expect_count(host: &Host, number: Option<u32>) {
    let listed = counts(host);
    let wanted = number.map(|it| format!("tcp . 8080 : {it:#010x}"));
    match wanted {
        Some(wanted) => assert!(listed.contains(&wanted), "{wanted} is not in {listed}"),
        None => assert!(!listed.contains("elements"), "{listed}"),
    }
}

/// Turns the table into one that a version without counts makes.
fn forget_counting(host: &Host) {
    let listed = host.run("nft", &["list", "ruleset"]);
    let mut lines: Vec<_> = listed.lines().map(str::to_owned).collect();
    let mut is_count = false;
    lines.retain(|line| {
        is_count |= line.contains("map address-port-counts");
        let is_kept = !is_count;
        is_count &= line.trim() != "}";
        is_kept
    });
    let text = lines.join("\n").replace(", which are counted [", " [");
    assert!(!text.contains("count"), "{text}");
    load(host, &text);
}

fn load(host: &Host, ruleset: &str) {
    let saved = host.dir().join("nftables.conf");
    fs::write(&saved, ruleset).unwrap();
    host.run("nft", &["flush", "ruleset"]);
    host.run("nft", &["-f", saved.to_str().unwrap()]);
}

/// `a` and `b` have port 8080 of an address each; `c` asks for it on every address.
struct Pods<'h> {
    ports: Ports<'h>,
    a: (Sandbox, Network<'h>),
    b: (Sandbox, Network<'h>),
    c: (Sandbox, Network<'h>),
}

impl<'h> Pods<'h> {
    fn new(host: &'h Host) -> Self {
        host.outside();
        host.ip("address add 192.0.2.9/24 dev uplink");
        let ports = host.ports();
        let attach = |name, mapping| {
            let pod = host.sandbox(name);
            let asks = ports.attach(&pod, &[mapping]);
            (pod, asks)
        };
        let [a, b, c] =
            [("a", SINGLE), ("b", OTHER), ("c", EVERY)].map(|(name, it)| attach(name, it));
        for (pod, asks) in [&a, &b] {
            asks.add(pod);
        }
        Self { ports, a, b, c }
    }

    #[track_caller]
    fn expect_held_by(&self, (holder, _): &(Sandbox, Network<'h>)) {
        self.expect_held(&format!("cni:pods/{}/eth0", holder.name()));
    }

    #[track_caller]
    fn expect_held(&self, holder: &str) {
        let refusal = self.c.1.on("ADD", &self.c.0).error();
        refusal.expect(11, &["tcp port 8080 of every IPv4 address", holder]);
    }
}

fn forget((pod, portmap): &(Sandbox, Network<'_>)) {
    portmap.on("DEL", pod).without("CNI_NETNS").ok();
}

#[test]
fn an_add_of_every_address_receives_no_list_of_ports_of_single_addresses() {
    const FEW: u16 = 5;
    const MANY: u16 = 500;
    let host = Host::new();
    let ports = host.ports();
    let pod = host.sandbox("one-more");
    let asks = ports.attach(&pod, &["8080:80", "8081:81/udp"]);
    let received = |call: &Invocation| Trace::of(call, &host.dir().join("calls")).received();
    let verbs = || {
        let add = received(&asks.on("ADD", &pod));
        let check = received(&asks.on("CHECK", &pod));
        [add, check, received(&asks.on("DEL", &pod))]
    };
    let add = |name, numbers: std::ops::Range<u16>| {
        let both = numbers.flat_map(|it| {
            let port = 10_000 + it;
            [
                format!("192.0.2.1:{port}:80"),
                format!("[2001:db8::1]:{port}:80"),
            ]
        });
        let both: Vec<_> = both.collect();
        let mappings: Vec<_> = both.iter().map(String::as_str).collect();
        ports.add(&host.sandbox(name), &mappings);
    };
    add("few", 0..FEW);
    verbs();
    let beside_few = verbs();
    add("many", FEW..MANY);
    let beside_many = verbs();
    println!("{beside_few:?} bytes, then {beside_many:?}");
    for (few, many) in beside_few.into_iter().zip(beside_many) {
        // An element is 60 bytes and more.
        assert!(
            few > 0 && many <= few + 60,
            "{beside_few:?}, then {beside_many:?}"
        );
    }
}

#[test]
fn a_port_is_free_for_every_address_when_the_last_single_one_has_ended() {
    let host = Host::new();
    let pods = Pods::new(&host);
    expect_count(&host, Some(2));
    pods.expect_held("cni:pods/");
    forget(&pods.a);
    expect_count(&host, Some(1));
    pods.expect_held_by(&pods.b);
    pods.ports.portmap().gc(&[&pods.c.0]).ok();
    expect_count(&host, None);
    pods.c.1.add(&pods.c.0);
    let (a, asks) = &pods.a;
    let refusal = asks.on("ADD", a).error();
    refusal.expect(11, &["cni:pods/c/eth0"]);
    pods.c.1.del(&pods.c.0);
    asks.add(a);
    expect_count(&host, Some(1));
}

#[test]
fn gc_of_one_of_two_keeps_the_port_from_every_address() {
    let host = Host::new();
    let pods = Pods::new(&host);
    pods.ports.portmap().gc(&[&pods.b.0, &pods.c.0]).ok();
    expect_count(&host, Some(1));
    pods.expect_held_by(&pods.b);
}

#[test]
fn a_second_add_counts_what_it_replaces() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let (a, asks) = &pods.a;
    asks.add(a);
    expect_count(&host, Some(2));
    Ports::asking(asks, &["192.0.2.1:8081:80"]).add(a);
    expect_count(&host, Some(1));
    assert!(counts(&host).contains("tcp . 8081 : 0x00000001"));
    forget(&pods.b);
    forget(&pods.a);
    expect_count(&host, None);
}

#[test]
fn an_add_that_fails_leaves_the_counts_of_before() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let full = ["sh", "-c", "exec \"$@\" >/dev/full", "sh"].map(str::to_owned);
    let (a, asks) = &pods.a;
    let other = Ports::asking(asks, &["192.0.2.1:8081:80"]);
    assert!(!other.on("ADD", a).under(&full).run().status.success());
    expect_count(&host, Some(2));
    assert!(!counts(&host).contains("8081"));
    let (c, asks) = &pods.c;
    let single = Ports::asking(asks, &["127.0.0.1:8080:80"]);
    assert!(!single.on("ADD", c).under(&full).run().status.success());
    expect_count(&host, Some(2));
}

#[test]
fn ports_of_a_version_that_did_not_count_are_counted_by_the_next_add() {
    let host = Host::new();
    let pods = Pods::new(&host);
    forget_counting(&host);
    pods.expect_held("cni:pods/");
    forget_counting(&host);
    pods.ports.add(&host.sandbox("d"), &["9090:90"]);
    expect_count(&host, Some(2));
}

#[test]
fn a_ruleset_that_is_saved_and_loaded_has_the_same_counts() {
    let host = Host::new();
    let pods = Pods::new(&host);
    load(&host, &host.run("nft", &["list", "ruleset"]));
    expect_count(&host, Some(2));
    forget(&pods.a);
    expect_count(&host, Some(1));
    pods.expect_held_by(&pods.b);
}

#[test]
fn check_reports_missing_counts_and_reload_adds_them() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let (a, asks) = &pods.a;
    for command in ["flush", "delete"] {
        asks.on("CHECK", a).ok();
        host.run("nft", &[command, "map", "inet", "cni-portmap", COUNTS]);
        let refusal = asks.on("CHECK", a).error();
        refusal.expect(100, &["tcp port 8080 of 192.0.2.1 is not counted", COUNTS]);
        asks.on("RELOAD", a).ok();
        expect_count(&host, Some(2));
        pods.expect_held("cni:pods/");
    }
}

#[test]
fn del_counts_again_where_counts_are_missing() {
    let host = Host::new();
    let pods = Pods::new(&host);
    host.run("nft", &["delete", "map", "inet", "cni-portmap", COUNTS]);
    forget(&pods.a);
    expect_count(&host, Some(1));
    pods.expect_held_by(&pods.b);
}

#[test]
fn a_count_of_nothing_is_removed_by_the_add_that_asks_for_the_port() {
    let host = Host::new();
    let pods = Pods::new(&host);
    for pod in [&pods.a, &pods.b] {
        forget(pod);
    }
    let stale = "add element inet cni-portmap address-port-counts4 { tcp . 8080 : 7 }";
    host.run("nft", &[stale]);
    pods.c.1.add(&pods.c.0);
    expect_count(&host, None);
}

/// Of two others who have the port, one is of the same container.
#[test]
fn a_sibling_with_the_port_of_one_address_does_not_hide_another_holder() {
    let host = Host::new();
    let pods = Pods::new(&host);
    let (a, asks) = &pods.a;
    let asks = Ports::asking(asks, &[EVERY]);
    let call = |verb| asks.on(verb, a).ifname("eth1");
    call("ADD").error().expect(11, &["cni:pods/b/eth0"]);
    forget(&pods.b);
    call("ADD").ok();
    expect_count(&host, Some(1));
    call("DEL").ok();
    forget(&pods.a);
    expect_count(&host, None);
}
