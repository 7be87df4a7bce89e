//! A node that switches between the reference and ours without draining: which objects each one
//! finds of the other. The tests `bridge_del`, `bandwidth_foreign`, `lease_format` and
//! `portmap_neighbours` cover single plugins; this one covers the whole chain.

use serde_json::{Value, json};
use tests::traffic::{tcp, tcp_by_port, udp};
use tests::{Chain, Host, Invocation, Place as _, Removal, Sandbox, Snapshot, eventually};

const CHAIN: [&str; 3] = ["bridge", "portmap", "bandwidth"];

/// Returns a network that both support, including masquerading. The reference accepts no rate
/// without a burst.
fn chain(host: &Host) -> Chain<'_> {
    chain_with_ports(host, [8080, 8053])
}

fn chain_with_ports(host: &Host, ports: [u16; 2]) -> Chain<'_> {
    let limits = json!({
        "ingressRate": 10_000_000, "ingressBurst": 1_000_000,
        "egressRate": 10_000_000, "egressBurst": 1_000_000,
    });
    let chain = Chain::new(host, &CHAIN).with("bridge", "macspoofchk", &json!(false));
    let chain = chain.with_ports(ports);
    chain.with("bandwidth", "runtimeConfig.bandwidth", &limits)
}

/// Returns a snapshot after a first attachment of `chain`, so that shared objects exist.
fn warm(chain: &Chain, host: &Host) -> Snapshot {
    let warm = host.sandbox("warm");
    let result = chain.add(&warm).unwrap();
    // The reference's bridge checks its address for duplicates while it has a port.
    let settled = || host.ip("-6 address show dev cni0 tentative").is_empty();
    assert!(eventually(settled));
    chain.remove(Removal::Del, (&warm, &result)).unwrap();
    warm.remove();
    host.snapshot()
}

/// Returns leftovers, except for rules of the reference, which do not name their owner.
fn left(host: &Host, before: &Snapshot) -> Vec<String> {
    let mut left = host.snapshot().differences(before);
    left.retain(|it| !it.starts_with("rules: ") || it.contains("cni:"));
    left
}

fn position(chain: &Chain, plugin: &str) -> usize {
    chain.position(plugin).unwrap()
}

#[test]
fn pods_of_both_reach_each_other_and_keep_their_ports() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    chain(&host).by_reference().add(&a).unwrap();
    let ours = chain_with_ports(&host, [8081, 8054]);
    ours.add(&b).unwrap();
    assert_eq!(a.addresses("eth0"), ["10.1.0.2/24", "fd00:1::2/64"]);
    assert_eq!(b.addresses("eth0"), ["10.1.0.3/24", "fd00:1::3/64"]);
    assert!(tcp(&a, &b, "10.1.0.3").is_some() && tcp(&b, &a, "10.1.0.2").is_some());
    assert!(udp(&a, &b, "fd00:1::3") && udp(&b, &a, "fd00:1::2"));
    for (port, pod, other) in [(8080, &a, &b), (8081, &b, &a)] {
        let target = format!("192.0.2.1:{port}");
        assert!(tcp_by_port(other, &target, (pod, 80)).is_some());
        assert!(tcp_by_port(&outside, &target, (pod, 80)).is_some());
        assert!(tcp_by_port(&host, &format!("127.0.0.1:{port}"), (pod, 80)).is_some());
    }
}

#[test]
fn links_and_limits_of_the_reference_are_checked_and_its_ports_are_not_ours() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ours = chain(&host);
    let result = ours.by_reference().add(&a).unwrap();
    let check = |plugin: &str| ours.call(position(&ours, plugin), "CHECK", (&a, &result));
    check("bridge").ok();
    check("bandwidth").ok();
    check("portmap").error().expect(100, &["another plugin"]);
}

#[test]
fn what_the_reference_attached_is_deleted_but_for_its_rules() {
    let host = Host::new();
    let ours = chain(&host);
    let before = warm(&ours.by_reference(), &host);
    let a = host.sandbox("a");
    let result = ours.by_reference().add(&a).unwrap();
    assert!(!left(&host, &before).is_empty());
    ours.remove(Removal::Del, (&a, &result)).unwrap();
    assert_eq!(left(&host, &before), Vec::<String>::new());
    assert_eq!(a.links(), ["lo"]);
}

/// Only the result and the sandbox identify the reference's link. DEL recognizes its ifb by the
/// name once no link redirects to it.
#[test]
fn untagged_objects_of_the_reference_end_with_the_sandbox() {
    for removal in [Removal::DelForgotten, Removal::Gc] {
        let host = Host::new();
        let ours = chain(&host);
        let before = warm(&ours.by_reference(), &host);
        let a = host.sandbox("a");
        let result = ours.by_reference().add(&a).unwrap();
        ours.remove(removal, (&a, &result)).unwrap();
        assert!(host.leases("pods").is_empty() && a.has_link("eth0"));
        a.remove();
        let pair = |host: &Host| host.links().iter().any(|it| it.starts_with("veth"));
        assert!(eventually(|| !pair(&host)));
        ours.remove(Removal::DelForgotten, (&a, &result)).unwrap();
        assert_eq!(left(&host, &before), Vec::<String>::new(), "{removal:?}");
    }
}

#[test]
fn gc_keeps_the_references_pods_that_are_listed() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ours = chain(&host);
    ours.by_reference().add(&a).unwrap();
    let other = chain_with_ports(&host, [8081, 8054]);
    other.by_reference().add(&b).unwrap();
    b.remove();
    ours.gc(&[&a]).unwrap();
    let leases: Vec<_> = host.leases("pods").into_keys().collect();
    assert_eq!(leases, ["10.1.0.2", "fd00:1::2"]);
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    // The reference's bridge checks its address for duplicates, and has the MAC of a port.
    assert!(eventually(|| a.pings("10.1.0.1") && a.pings("fd00:1::1")));
}

/// Debian's version of the reference has no GC.
#[test]
fn what_the_reference_leaves_of_ours_goes_with_our_next_gc() {
    for removal in [Removal::Del, Removal::DelForgotten] {
        let host = Host::new();
        let ours = chain(&host);
        let theirs = ours.by_reference();
        let before = warm(&ours, &host);
        let a = host.sandbox("a");
        let result = ours.add(&a).unwrap();
        let check = |plugin: &str| {
            theirs
                .call(position(&theirs, plugin), "CHECK", (&a, &result))
                .run()
        };
        check("bridge").ok();
        let refusal = check("bandwidth");
        assert!(refusal.stdout.contains("get ifb device"), "{refusal:#?}");
        for place in theirs.order(removal) {
            let delete = theirs.removal(place, removal, (&a, &result));
            if removal == Removal::Del && place == position(&theirs, "bridge") {
                fails_for_want_of_a_chain(&delete);
            } else {
                delete.ok();
            }
        }
        assert!(host.leases("pods").is_empty());
        ours.gc(&[]).unwrap();
        assert_eq!(left(&host, &before), Vec::<String>::new(), "{removal:?}");
    }
}

/// The reference's bridge deletes the link and then fails without a chain of its own for the link's
/// address. Runtimes repeat DEL without a result, which does not need the chain.
fn fails_for_want_of_a_chain(delete: &Invocation) {
    let error: Value = serde_json::from_str(&delete.run().stdout).unwrap();
    let msg = error["msg"].as_str().unwrap();
    assert!(msg.contains("-D POSTROUTING"), "{msg}");
    assert_eq!(delete.clone().without("CNI_NETNS").ok(), Value::Null);
}

/// A pod that ours deletes keeps its port in the reference's rules, which precede ours.
#[test]
fn a_port_in_rules_that_the_reference_left_is_unreachable() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ours = chain(&host);
    let result = ours.by_reference().add(&a).unwrap();
    ours.remove(Removal::Del, (&a, &result)).unwrap();
    ours.add(&b).unwrap();
    let reached = |b: &Sandbox| tcp_by_port(&outside, "192.0.2.1:8080", (b, 80)).is_some();
    assert!(!reached(&b), "cnitool migrate would not be needed");
}
