//! bandwidth: a second ADD of a live attachment that fails keeps the old limits.

use nix::errno::Errno;
use serde_json::{Value, json};
use tests::faults::{Call, Harm, Trace};
use tests::{Host, Network, Place as _, Sandbox};

/// A sandbox on the bridge.
struct Scene {
    host: Host,
    a: Sandbox,
    result: Value,
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

    /// Returns the qdiscs, classes and filters of the attachment, and its backstop.
    fn limits(&self) -> Vec<String> {
        let host = &self.host;
        let ifbs = host.ip_json("link show type ifb");
        let ifb = ifbs[0]["ifname"].as_str().unwrap();
        let link = self.result["interfaces"][1]["name"].as_str().unwrap();
        let shown = [link, ifb].into_iter().flat_map(|link| {
            let kinds = ["qdisc", "class", "filter"].into_iter();
            kinds.map(move |kind| host.tc(&format!("{kind} show dev {link}")))
        });
        let ingress = host.tc(&format!("filter show dev {link} ingress"));
        let rules = host.run("nft", &["list", "table", "bridge", "cni-bandwidth"]);
        let rules = rules.lines().filter(|it| it.contains("cni:pods/a/"));
        let rules = rules.map(str::to_owned).collect::<Vec<_>>().join("\n");
        // A count of packets follows, or the kernel's number of an action.
        let counted = [" direct_packets_stat", "\tindex "];
        let uncounted = |it: &str| {
            let end = counted.iter().filter_map(|word| it.find(word)).min();
            it[..end.unwrap_or(it.len())].to_owned()
        };
        let lines: Vec<_> = shown.chain([ingress, rules]).collect();
        lines
            .iter()
            .flat_map(|it| it.lines())
            .map(uncounted)
            .collect()
    }
}

/// Fails each message of a second ADD with another rate and other subnets. The old limits have to
/// stay, or the new ones to be complete.
fn keeps_a_limit(old: &Value, new: &Value) {
    let scene = Scene::new();
    let file = scene.host.dir().join("trace");
    let (first, second) = (
        scene.limited(10_000_000, old),
        scene.limited(5_000_000, new),
    );
    // The first ones create tables and chains, which stay.
    for network in [&first, &second, &first] {
        network.add(&scene.a);
    }
    let before = scene.limits();
    let again = second.on("ADD", &scene.a);
    let trace = Trace::of(&again, &file);
    let after = scene.limits();
    assert_ne!(before, after);
    // The kernel does not answer a refused transaction of nf_tables.
    let is_change = |it: &Call| {
        ["=RTM_NEW", "=RTM_DEL"]
            .iter()
            .any(|kind| it.line().contains(kind))
    };
    let calls = trace.calls("sendto").into_iter();
    let faults = calls.flat_map(|it| {
        let refused = is_change(&it).then(|| it.with(Harm::Refusal));
        [it.with(Harm::Error(Errno::ENOBUFS))]
            .into_iter()
            .chain(refused)
    });
    let mut failed = 0;
    for fault in faults {
        first.add(&scene.a);
        assert_eq!(scene.limits(), before);
        let outcome = fault.strikes(&again, &file).run();
        if outcome.status.success() {
            assert_eq!(scene.limits(), after, "{fault}");
        } else {
            assert_eq!(scene.limits(), before, "{fault} {outcome:#?}");
            failed += 1;
        }
    }
    assert!(failed > 10, "{failed}");
}

#[test]
fn failed_add_with_other_rates_keeps_the_old_ones() {
    keeps_a_limit(&Value::Null, &Value::Null);
}

#[test]
fn failed_add_with_other_subnets_keeps_the_old_ones() {
    let new = json!(["198.51.100.0/24", "fd00::/8"]);
    keeps_a_limit(&json!(["192.0.2.0/24"]), &new);
}

#[test]
fn failed_add_with_subnets_keeps_the_limit_for_all_traffic() {
    keeps_a_limit(&Value::Null, &json!(["192.0.2.0/24"]));
}

#[test]
fn failed_add_without_subnets_keeps_the_limit_for_subnets() {
    keeps_a_limit(&json!(["192.0.2.0/24"]), &Value::Null);
}
