//! bandwidth: the backstop, the second limit of what a container sends, in `nf_tables`.

use std::thread;

use nix::errno::Errno;
use serde_json::{Value, json};
use tests::faults::{Harm, Trace};
use tests::limited::{RoutedContainer, record};
use tests::{Host, Invocation, Network, Place as _, eventually};

/// Limits what the container sends to 10 Mbit/s.
fn limited(scene: &RoutedContainer) -> Network<'_> {
    let network = scene.host.bandwidth().with("egressRate", 10_000_000);
    network.with("prevResult", scene.result.clone())
}

/// Limits the container, and returns RELOAD of the same network.
fn reload(scene: &RoutedContainer) -> Invocation {
    let result = limited(scene).add(&scene.a);
    let network = limited(scene).with("prevResult", result);
    network.on("RELOAD", &scene.a)
}

/// Returns the elements of an attachment, and its shared ones.
fn elements(host: &Host, family: &str) -> String {
    host.run("nft", &["list", "table", family, "cni-bandwidth"])
}

#[test]
fn del_and_gc_leave_nothing_of_it_and_need_nothing_but_names() {
    let scene = RoutedContainer::new();
    let (host, a) = (&scene.host, &scene.a);
    let b = host.sandbox("b");
    let of_b = host.bridge_v4().add(&b);
    let shaped = json!(["198.51.100.0/24"]);
    let [of_a, of_b] = [&scene.result, &of_b].map(|result| {
        let network = limited(&scene).with("prevResult", result.clone());
        network.with("shapedSubnets", shaped.clone())
    });
    let has = |word: &str| elements(host, "bridge").contains(word);
    let add = |network: &Network<'_>, sandbox| drop(network.add(sandbox));
    add(&of_a, a);
    add(&of_b, &b);
    assert!(has("cni:pods/a/eth0") && has("cni:pods/b/eth0") && has("policy-"));
    host.bandwidth().on("DEL", a).without("CNI_NETNS").ok();
    assert!(!has("cni:pods/a/eth0") && has("cni:pods/b/eth0") && has("policy-"));
    host.bandwidth().on("DEL", &b).netns("/run/netns/gone").ok();
    assert!(!has("cni:") && !has("chain policy-"));
    add(&of_a, a);
    add(&of_b, &b);
    let collected = host.bandwidth().gc(&[a]).run();
    assert!(
        collected.stderr.contains("cni:pods/b/eth0"),
        "{collected:#?}"
    );
    assert!(has("cni:pods/a/eth0") && !has("cni:pods/b/eth0"));
    host.bandwidth().gc(&[]).ok();
    assert!(!has("cni:") && !has("chain policy-"));
}

#[test]
fn a_second_add_leaves_nothing_of_the_first_one() {
    let scene = RoutedContainer::new();
    let shaped = limited(&scene).with("shapedSubnets", json!(["198.51.100.0/24"]));
    let result = shaped.add(&scene.a);
    let all = limited(&scene);
    let refusal = all.check(&scene.a, &result).error();
    refusal.expect(100, &["policies", "was not asked for"]);
    let result = all.add(&scene.a);
    all.check(&scene.a, &result).ok();
    let elements = elements(&scene.host, "bridge");
    assert_eq!(elements.matches("cni:").count(), 1, "{elements}");
    assert!(!elements.contains("chain policy-"), "{elements}");
    let faster = limited(&scene).with("egressRate", 20_000_000);
    let refusal = faster.check(&scene.a, &result).error();
    refusal.expect(100, &["element of cni:pods/a/eth0 in set limits"]);
}

#[test]
fn reload_adds_nothing_without_an_attachment() {
    let scene = RoutedContainer::new();
    let reload = reload(&scene);
    limited(&scene).del(&scene.a);
    scene.host.bridge_v4().del(&scene.a);
    reload.error().expect(7, &["no interface eth0"]);
    assert!(!elements(&scene.host, "bridge").contains("cni:") && !record("a").exists());
}

#[test]
fn rate_that_cannot_be_counted_is_refused_and_leaves_the_limit() {
    let scene = RoutedContainer::new();
    let network = limited(&scene);
    let result = network.add(&scene.a);
    let before = scene.host.snapshot();
    let faster = limited(&scene).with("egressRate", 10_u64.pow(15));
    let refusal = faster.on("ADD", &scene.a).error();
    refusal.expect(7, &["egressRate", "nf_tables", "128 Gbit/s"]);
    scene.host.snapshot().assert_same_as(&before);
    network.check(&scene.a, &result).ok();
}

#[test]
fn without_nf_tables_an_egress_limit_is_refused() {
    let scene = RoutedContainer::new();
    let (network, file) = (limited(&scene), scene.host.dir().join("trace"));
    let without = |invocation: &Invocation| {
        let calls = Trace::of(invocation, &file).calls("socket");
        if invocation.variable("CNI_COMMAND") == "ADD" {
            network.del(&scene.a);
            scene.a.tc("qdisc delete dev eth0 root");
        }
        let call = calls
            .iter()
            .find(|it| it.line().contains("NETLINK_NETFILTER"));
        let fault = call.unwrap().with(Harm::Error(Errno::EPROTONOSUPPORT));
        fault.strikes(invocation, &file).run()
    };
    let words = "nf_tables cannot limit what a container sends";
    let result = network.add(&scene.a);
    let checked = without(
        &limited(&scene)
            .with("prevResult", result)
            .on("CHECK", &scene.a),
    );
    assert!(checked.stdout.contains(words), "{checked:#?}");
    let added = without(&network.on("ADD", &scene.a));
    assert!(added.stdout.contains(words), "{added:#?}");
    assert_eq!(scene.a.limit("eth0"), None);
    let status = without(&limited(&scene).with("cniVersion", "1.1.0").call("STATUS"));
    assert_eq!(status.stderr.matches(words).count(), 1, "{status:#?}");
    status.ok();
    let del = without(&scene.host.bandwidth().on("DEL", &scene.a));
    assert_eq!(del.ok(), Value::Null);
}

/// Root in the sandbox must not keep the limit from being restored.
#[test]
fn reload_restores_the_backstop_whatever_the_sandbox_shows() {
    let scene = RoutedContainer::new();
    let reload = reload(&scene);
    let there = elements(&scene.host, "bridge");
    for mischief in [
        "tc qdisc delete dev eth0 root; tc qdisc add dev eth0 root handle b0: pfifo",
        "tc qdisc delete dev eth0 root",
        "tc qdisc add dev eth0 root pfifo",
        "ip link set eth0 down; ip link set eth0 name other; ip link set other up",
        "ip link add eth0 type bridge",
    ] {
        scene.a.sh(mischief);
        scene.host.run("nft", &["flush", "ruleset"]);
        let reloaded = reload.run();
        let rules = scene.host.run("nft", &["list", "ruleset"]);
        assert!(rules.contains(&there), "{mischief}: {reloaded:#?}");
    }
    scene.host.bandwidth().del(&scene.a);
    reload.error();
    assert!(!elements(&scene.host, "bridge").contains("cni:"));
}

/// The DEL has removed the limit, but not yet the pair.
#[test]
fn reload_that_fails_beside_a_del_leaves_nothing() {
    let scene = RoutedContainer::new();
    let reload = reload(&scene);
    limited(&scene).del(&scene.a);
    scene.a.tc("qdisc delete dev eth0 root");
    scene.a.tc("qdisc add dev eth0 root handle b0: pfifo");
    let has_backstop = || elements(&scene.host, "bridge").contains("cni:");
    let reloaded = thread::scope(|scope| {
        let reloading = scope.spawn(|| reload.run());
        assert!(eventually(has_backstop));
        scene.host.bridge_v4().del(&scene.a);
        reloading.join().unwrap()
    });
    let refusal = reloaded.error();
    refusal.expect(100, &["was deleted meanwhile"]);
    assert!(!has_backstop() && !record("a").exists());
}

#[test]
fn refused_change_of_the_limit_leaves_the_backstop() {
    let scene = RoutedContainer::new();
    let result = limited(&scene).add(&scene.a);
    let there = elements(&scene.host, "bridge");
    scene
        .a
        .sh("ip link set eth0 down; ip link set eth0 name other");
    let change = limited(&scene).with("egressRate", 20_000_000);
    let change = change.with("runtimeConfig.changeLimits", json!(["egress"]));
    let refused = change.with("prevResult", result).on("RELOAD", &scene.a);
    refused.error().expect(7, &["no interface eth0"]);
    assert_eq!(elements(&scene.host, "bridge"), there);
}
