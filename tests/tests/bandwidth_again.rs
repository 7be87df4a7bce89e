//! bandwidth: a second ADD of a live attachment that fails leaves the old or the new limit in each
//! direction, and the next ADD completes it. So does RELOAD.

use nix::errno::Errno;
use serde_json::{Value, json};
use tests::faults::{Harm, Trace};
use tests::points::Attack;
use tests::tally::{Ended, Tally};
use tests::{Host, Invocation, Network, Place, Sandbox};

/// A sandbox on the bridge.
struct Scene {
    host: Host,
    a: Sandbox,
    result: Value,
}

/// What limits the sandbox, without the kernel's numbers and counters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Limits {
    /// Towards the sandbox.
    ingress: String,
    /// From the sandbox.
    egress: String,
    backstop: String,
}

impl Scene {
    fn new() -> Self {
        let host = Host::new();
        let a = host.sandbox("a");
        let result = host.bridge_v4().add(&a);
        Self { host, a, result }
    }

    /// Returns limits of this rate in both directions, for these subnets.
    fn limited(&self, rate: u64, subnets: &Value) -> Network<'_> {
        let limits = json!({"ingressRate": rate, "egressRate": rate});
        let network = self.host.bandwidth();
        let network = network.with("prevResult", self.result.clone());
        let network = network.with("runtimeConfig.bandwidth", limits);
        network.with("shapedSubnets", subnets.clone())
    }

    fn link(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    fn limits(&self) -> Limits {
        let rules = ["list", "table", "bridge", "cni-bandwidth"];
        let rules = self.host.run("nft", &rules);
        let rules = rules.lines().filter(|it| it.contains("cni:pods/a/"));
        Limits {
            ingress: shown(&self.host, self.link()),
            egress: shown(&self.a, "eth0"),
            backstop: rules.collect::<Vec<_>>().join("\n"),
        }
    }

    /// Returns an error unless something limits each direction as `before` or `after` does. A
    /// limit for all traffic is also one for some subnets.
    fn expect_limits(&self, [before, after]: [&Limits; 2], rates: [u64; 2]) -> Result<(), String> {
        let now = self.limits();
        let is_all = |it: &str| {
            let is_rate = |rate: u64| it.contains(&format!(" rate {}Mbit ", rate / 1_000_000));
            it.contains("tbf b0: root") && rates.into_iter().any(is_rate)
        };
        let is_ingress =
            now.ingress == before.ingress || now.ingress == after.ingress || is_all(&now.ingress);
        let is_egress =
            now.egress == before.egress || now.egress == after.egress || is_all(&now.egress);
        let has_backstop = [before, after].iter().any(|it| now.backstop == it.backstop);
        if is_ingress && is_egress && has_backstop {
            return Ok(());
        }
        Err(format!("{now:#?} is neither {before:#?} nor {after:#?}"))
    }
}

/// Returns the qdiscs, classes and filters of a link, without a count of packets.
fn shown(place: &impl Place, link: &str) -> String {
    let kinds = ["qdisc", "class", "filter"];
    let shown = kinds.map(|kind| place.tc(&format!("{kind} show dev {link}")));
    let lines = shown.iter().flat_map(|it| it.lines()).map(|line| {
        let end = line.find(" direct_packets_stat");
        format!("{}\n", &line[..end.unwrap_or(line.len())])
    });
    lines.collect()
}

/// Fails calls of `again`, which changes the limits that `first` makes.
fn keeps_a_limit(scene: &Scene, first: &Invocation, again: &Invocation, rates: [u64; 2]) {
    let file = scene.host.dir().join("trace");
    // The first ones create tables and chains, which stay.
    for run in [first, again, first] {
        run.ok();
    }
    let before = scene.limits();
    let trace = Trace::of(again, &file);
    let after = scene.limits();
    assert_ne!(before, after);
    let lost = trace.calls("sendto").into_iter();
    let lost = lost.map(|it| it.with(Harm::Error(Errno::ENOBUFS)));
    let faults = Attack::Failure.faults(&trace).into_iter();
    let refused = Attack::Refusal.faults(&trace).into_iter();
    let refused = refused.filter(|it| it.harm() == Harm::Refusal);
    let mut tally = Tally::new(["bandwidth", again.variable("CNI_COMMAND"), "failure"]);
    for fault in tally.choose(lost.chain(faults).chain(refused).collect()) {
        first.ok();
        assert_eq!(scene.limits(), before);
        let outcome = fault.strikes(again, &file).run();
        let ended = fault.harm().ended(&outcome).unwrap();
        let kept = match ended {
            Ended::Succeeded => scene.expect_limits([&after, &after], rates),
            _ => scene.expect_limits([&before, &after], rates),
        };
        let wrong = |it| format!("{it}: {fault} {outcome:#?}");
        tally.note(Some(ended), kept.map_err(wrong));
        again.ok();
        assert_eq!(scene.limits(), after, "after {fault}");
    }
    tally.finish(80, 5);
    scene.host.bandwidth().del(&scene.a);
    let rules = scene.host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("cni:pods/a/"), "{rules}");
}

/// Fails each call of a second ADD with another rate and other subnets.
fn add_keeps_a_limit(old: &Value, new: &Value, rates: [u64; 2]) {
    let scene = Scene::new();
    let [first, again] = [scene.limited(rates[0], old), scene.limited(rates[1], new)];
    let [first, again] = [first, again].map(|it| it.on("ADD", &scene.a));
    keeps_a_limit(&scene, &first, &again, rates);
}

/// Fails each call of a RELOAD that changes both directions from one rate to another; 0 is none.
fn reload_keeps_a_limit(rates: [u64; 2]) {
    let scene = Scene::new();
    scene.limited(1_000_000, &Value::Null).add(&scene.a);
    let [first, again] = rates.map(|rate| {
        let limited = scene.limited(rate, &Value::Null);
        limited.with("runtimeConfig.changeLimits", json!(["ingress", "egress"]))
    });
    // RELOAD waits after it has created a record.
    let verb = if rates[1] == 0 { "ADD" } else { "RELOAD" };
    let (first, again) = (first.on(verb, &scene.a), again.on("RELOAD", &scene.a));
    keeps_a_limit(&scene, &first, &again, rates);
}

#[test]
fn failed_add_with_a_lower_rate_leaves_the_old_or_the_new_one() {
    add_keeps_a_limit(&Value::Null, &Value::Null, [10_000_000, 5_000_000]);
}

#[test]
fn failed_add_with_a_higher_rate_leaves_the_old_or_the_new_one() {
    add_keeps_a_limit(&Value::Null, &Value::Null, [5_000_000, 10_000_000]);
}

#[test]
fn failed_add_with_other_subnets_leaves_a_limit() {
    let new = json!(["198.51.100.0/24", "fd00::/8"]);
    add_keeps_a_limit(&json!(["192.0.2.0/24"]), &new, [10_000_000, 5_000_000]);
}

#[test]
fn failed_add_with_subnets_leaves_a_limit() {
    let new = json!(["192.0.2.0/24"]);
    add_keeps_a_limit(&Value::Null, &new, [10_000_000, 5_000_000]);
}

#[test]
fn failed_add_without_subnets_leaves_a_limit() {
    let old = json!(["192.0.2.0/24"]);
    add_keeps_a_limit(&old, &Value::Null, [10_000_000, 5_000_000]);
}

#[test]
fn failed_half_of_a_limit_for_many_subnets_limits_all_traffic() {
    let scene = Scene::new();
    let file = scene.host.dir().join("trace");
    // One message to the kernel has at most 100 requests.
    let subnets: Vec<_> = (0..120).map(|it| format!("192.0.{it}.0/24")).collect();
    let first = scene.limited(10_000_000, &Value::Null);
    let again = scene
        .limited(5_000_000, &json!(subnets))
        .on("ADD", &scene.a);
    // The first run creates tables and chains, which stay.
    first.add(&scene.a);
    again.ok();
    first.add(&scene.a);
    let calls = Trace::of(&again, &file).calls("sendto");
    let after = scene.limits();
    let replaced = calls
        .iter()
        .position(|it| it.line().contains("=RTM_DELQDISC"));
    let second = &calls[replaced.unwrap() + 1];
    assert!(second.line().contains("=RTM_NEWTFILTER"), "{second:?}");
    first.add(&scene.a);
    let fault = second.with(Harm::Error(Errno::ENOBUFS));
    fault.strikes(&again, &file).error();
    let limits = scene.limits();
    assert!(
        limits.ingress.starts_with("qdisc tbf b0: root"),
        "{limits:#?}"
    );
    assert!(limits.ingress.contains(" rate 5Mbit "), "{limits:#?}");
    again.ok();
    assert_eq!(scene.limits(), after);
}

#[test]
fn failed_reload_with_other_rates_leaves_the_old_or_the_new_ones() {
    reload_keeps_a_limit([5_000_000, 10_000_000]);
    reload_keeps_a_limit([10_000_000, 5_000_000]);
}

#[test]
fn failed_reload_with_new_limits_leaves_them_or_none() {
    reload_keeps_a_limit([0, 10_000_000]);
}

#[test]
fn failed_reload_without_limits_leaves_the_old_ones_or_none() {
    reload_keeps_a_limit([10_000_000, 0]);
}
