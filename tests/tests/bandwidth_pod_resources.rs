//! bandwidth: limits of pods from the devices that the kubelet allocated to them.

use std::fs;

use serde_json::json;
use tests::allocated::{EGRESS, INGRESS, Pod, given};
use tests::traffic::{self, Flood};
use tests::{Checkpoint, Host, Place as _};

/// Checks that the best of the seconds after the first has the rate, and that they do not exceed it
/// on average. A busy machine makes single seconds lower, and the next one higher.
#[track_caller]
fn expect_rate(rates: &[f64], megabits: f64) {
    let (limit, later) = (megabits * 1e6, &rates[1..]);
    let seconds = f64::from(u32::try_from(later.len()).unwrap());
    let best = later.iter().copied().fold(0.0, f64::max);
    assert!(best > limit * 0.94, "{rates:?}");
    assert!(
        later.iter().sum::<f64>() < limit * seconds * 1.06,
        "{rates:?}"
    );
    assert!(rates[0] < limit * 1.15, "{rates:?}");
}

#[test]
fn pod_sends_and_receives_at_the_rate_of_its_devices() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add default via 192.0.2.1");
    let a = Pod::new(&host, "a");
    let checkpoint = Checkpoint::new().give("uid-a", INGRESS, &["i1", "i2"]);
    checkpoint
        .give("uid-a", EGRESS, &["e1", "e2", "e3", "e4"])
        .write();
    assert_eq!(a.add(&a.network()), a.joined);
    let (there, here) = ((&outside, "192.0.2.2"), (&a.sandbox, "10.1.0.2"));
    let towards = (here.0, here.1, "eth0");
    expect_rate(&traffic::flood(Flood::Udp, there, towards, 4), 20.0);
    let from = (there.0, there.1, "outside");
    expect_rate(&traffic::flood(Flood::Udp, here, from, 4), 20.0);
}

#[test]
fn devices_of_all_containers_of_the_pod_count_once_each() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    // The init container is the first one.
    let checkpoint = Checkpoint::new().give("uid-a", INGRESS, &["i1", "i2"]);
    let checkpoint = checkpoint.give("uid-a", INGRESS, &["i1"]);
    let checkpoint = checkpoint.give("uid-a", INGRESS, &["i2", "i3"]);
    let checkpoint = checkpoint.give("uid-b", INGRESS, &["i4"]);
    let checkpoint = checkpoint.give("uid-ab", EGRESS, &["e1"]);
    checkpoint.give("uid-a", "example.org/gpu", &["g1"]).write();
    a.add(&a.network());
    assert_eq!(a.limits(), [30, 0]);
}

#[test]
fn pod_without_devices_has_no_limit_among_ten_thousand() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| Pod::new(&host, name));
    let before = host.snapshot();
    given().register(10_000).write();
    assert_eq!(b.add(&b.network()), b.joined);
    host.snapshot().assert_same_as(&before);
    a.add(&a.network());
    assert_eq!((a.limits(), b.limits()), ([20, 15], [0, 0]));
}

#[test]
fn lower_one_of_devices_and_the_pods_wish_limits() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    given().write();
    let annotations = json!({"io.kubernetes.cri.pod-annotations": {
        "kubernetes.io/ingress-bandwidth": "12M", "kubernetes.io/egress-bandwidth": "1G",
    }});
    a.add(&a.network().with("runtimeConfig", annotations));
    assert_eq!(a.limits(), [12, 15]);
    let asked =
        json!({"ingressRate": 100_000_000, "egressRate": 10_000_000, "egressBurst": 160_000});
    let network = a.network().with("runtimeConfig.bandwidth", asked);
    a.add(&network);
    assert_eq!(a.limits(), [20, 10]);
    assert_eq!(a.sandbox.limit("eth0").unwrap().1, 20_000);
    network.del(&a.sandbox);
    assert_eq!(a.record(), None);
}

#[test]
fn a_burst_that_the_pod_asks_for_passes_no_more_than_the_devices_allow() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add default via 192.0.2.1");
    let a = Pod::new(&host, "a");
    given().write();
    let huge = 8_000_000_000_u64;
    let asked = json!({
        "ingressRate": 10_000_000, "ingressBurst": huge,
        "egressRate": 10_000_000, "egressBurst": huge,
    });
    a.add(&a.network().with("runtimeConfig.bandwidth", asked.clone()));
    assert_eq!(a.limits(), [10, 10]);
    let (there, here) = ((&outside, "192.0.2.2"), (&a.sandbox, "10.1.0.2"));
    let towards = (here.0, here.1, "eth0");
    expect_rate(&traffic::flood(Flood::Udp, there, towards, 3), 10.0);
    let from = (there.0, there.1, "outside");
    expect_rate(&traffic::flood(Flood::Udp, here, from, 3), 10.0);
    // An explicit burst of the operator counts for devices and requested rates.
    let network = a.network().with("defaultBurst", 1_000_000);
    network.del(&a.sandbox);
    a.add(&network.with("runtimeConfig.bandwidth", asked));
    assert_eq!(a.sandbox.limit("eth0").unwrap().1, 125_000);
}

#[test]
fn devices_replace_the_operators_rate_of_their_direction() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| Pod::new(&host, name));
    given().give("uid-c", EGRESS, &["e4"]).write();
    a.add(&a.by_default(2));
    assert_eq!(a.limits(), [20, 15]);
    a.add(&a.by_default(100));
    assert_eq!(a.limits(), [20, 15]);
    b.add(&b.by_default(2));
    assert_eq!(b.limits(), [2, 2]);
    c.add(&c.by_default(2));
    assert_eq!(c.limits(), [2, 5]);
    let records = [b.record(), c.record()].map(Option::unwrap);
    assert_eq!(
        records,
        ["limits egress\n", "egress 5000000\nlimits egress\n"]
    );
}

#[test]
fn listed_resources_alone_count() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    let checkpoint = given().give("uid-a", "other.example/egress-5mbit", &["x"]);
    let checkpoint = checkpoint.give("uid-b", EGRESS, &["e4"]);
    checkpoint.give("uid-c", EGRESS, &["e5"]).write();
    let network = a.network();
    let refusal = a.call(&network).error();
    refusal.expect(7, &["podResources", EGRESS, "other.example/egress-5mbit"]);
    a.add(&network.clone().with("podResources", json!([EGRESS])));
    assert_eq!(a.limits(), [0, 15]);
    for (name, none) in [("b", json!(false)), ("c", json!([]))] {
        let pod = Pod::new(&host, name);
        pod.add(&pod.network().with("podResources", none));
        assert_eq!((pod.limits(), pod.record()), ([0, 0], None));
    }
    let refused = network.with("podResources", json!(["example.org/gpu"]));
    a.call(&refused)
        .error()
        .expect(7, &["podResources[0]", "egress-<N>mbit"]);
}

#[test]
fn pod_without_uid_has_no_devices_and_that_is_reported() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    // There is no checkpoint.
    let network = a.network().with("ingressRate", 2_000_000);
    for args in ["", "IgnoreUnknown=1;K8S_POD_NAME=a", "K8S_POD_UID="] {
        let outcome = network.on("ADD", &a.sandbox).args(args).run();
        let result = outcome.ok();
        assert!(outcome.stderr.contains("no K8S_POD_UID"), "{outcome:?}");
        assert_eq!((a.limits(), a.record()), ([2, 0], None));
        network.check(&a.sandbox, &result).ok();
    }
    let malformed = network.on("ADD", &a.sandbox).args("K8S_POD_UID");
    malformed.error().expect(4, &["CNI_ARGS"]);
}

#[test]
fn pods_keep_their_limits_when_devices_change_hands() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| Pod::new(&host, name));
    given().write();
    let of_a = a.add(&a.network());
    // After a forced deletion, the new pod's ADD precedes the old one's DEL.
    let taken = Checkpoint::new().give("uid-b", INGRESS, &["i1"]);
    taken.give("uid-b", EGRESS, &["e1"]).write();
    let of_b = b.add(&b.network());
    assert_eq!((a.limits(), b.limits()), ([20, 15], [10, 5]));
    a.network().check(&a.sandbox, &of_a).ok();
    a.network().del(&a.sandbox);
    assert_eq!(a.record(), None);
    b.network().check(&b.sandbox, &of_b).ok();
    assert_eq!(b.limits(), [10, 5]);
}

#[test]
fn check_and_reload_know_the_limits_after_the_kubelet_forgot_the_pod() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    given().write();
    let result = a.add(&a.network());
    let record = "egress 15000000\ningress 20000000\nlimits egress\n";
    assert_eq!(a.record().unwrap(), record);
    for forget in [
        || Checkpoint::new().write(),
        || fs::remove_file(Checkpoint::PATH).unwrap(),
    ] {
        forget();
        host.run("nft", &["flush", "ruleset"]);
        let check = a.network().check(&a.sandbox, &result);
        check.error().expect(100, &["cnitool reload"]);
        let attached = a.network().with("prevResult", result.clone());
        attached.on("RELOAD", &a.sandbox).ok();
        check.ok();
    }
    let link = a.joined["interfaces"][1]["name"].as_str().unwrap();
    host.tc(&format!(
        "qdisc change dev {link} root handle b0: tbf rate 30mbit burst 125000 latency 25ms"
    ));
    let check = a.network().check(&a.sandbox, &result);
    check.error().expect(100, &[link]);
}

#[test]
fn del_and_gc_remove_the_record_without_a_checkpoint() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| Pod::new(&host, name));
    for change in [
        || fs::write(Checkpoint::PATH, "garbage").unwrap(),
        || fs::remove_file(Checkpoint::PATH).unwrap(),
    ] {
        given().write();
        a.add(&a.network());
        change();
        for _ in 0..2 {
            a.network().del(&a.sandbox);
            // The qdiscs end with the pair.
            assert_eq!((a.limits(), a.record()), ([20, 15], None));
            assert!(!host.run("nft", &["list", "ruleset"]).contains("cni:pods/"));
        }
    }
    given().give("uid-b", INGRESS, &["i3"]).write();
    a.add(&a.network());
    b.add(&b.network());
    fs::remove_file(Checkpoint::PATH).unwrap();
    // GC removes the record of `a` even if the key is no longer in the configuration.
    let gc = a.network().without("podResources").without("prevResult");
    gc.gc(&[&b.sandbox]).ok();
    assert_eq!((a.record(), b.record().is_some()), (None, true));
    gc.gc(&[]).ok();
    assert_eq!(b.record(), None);
}

#[test]
fn add_that_cannot_write_the_record_leaves_no_limit() {
    let host = Host::new();
    let [warm, a] = ["warm", "a"].map(|name| Pod::new(&host, name));
    given().give("uid-warm", EGRESS, &["e4"]).write();
    warm.add(&warm.network());
    warm.network().del(&warm.sandbox);
    let before = host.snapshot();
    host.read_only("/run/cni");
    a.call(&a.network())
        .error()
        .expect(100, &["/run/cni/bandwidth/"]);
    host.snapshot().assert_same_as(&before);
}
