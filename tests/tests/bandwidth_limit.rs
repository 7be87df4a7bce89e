//! cnitool limit and RELOAD: other limits for a live attachment.

use std::fs;
use std::thread;

use serde_json::{Value, json};
use tests::traffic::{self, Flood};
use tests::{Host, Invocation, Place as _, Sandbox, Tool, eventually};

/// A pod on the bridge whose runtime asks for limits, and another host.
struct Scene<'h> {
    host: &'h Host,
    tool: Tool<'h>,
    a: Sandbox,
    result: Value,
}

impl<'h> Scene<'h> {
    fn new(host: &'h Host, capabilities: &Value) -> Self {
        let (tool, a) = (host.tool(), host.sandbox("a"));
        let bridge = host.bridge_v4().with("isDefaultGateway", true);
        let declared = json!({"bandwidth": true, "io.kubernetes.cri.pod-annotations": true});
        let bandwidth = json!({"type": "bandwidth", "capabilities": declared});
        tool.configure("pods", &[bridge.config().clone(), bandwidth]);
        let add = tool.on("add", "pods", &a);
        let result = add.env("CAP_ARGS", capabilities.to_string()).ok();
        Self {
            host,
            tool,
            a,
            result,
        }
    }

    fn container(&self) -> String {
        let listed = self.tool.ps();
        listed[0]["container"].as_str().unwrap().to_owned()
    }

    fn limit(&self, words: &[&str]) -> Invocation {
        let container = self.container();
        let words: Vec<_> = ["limit", "pods", &container]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        self.tool.run(&words)
    }

    /// Returns the rates of the root qdiscs, in bytes per second: towards the pod and from it.
    fn rates(&self) -> [Option<u64>; 2] {
        let link = self.result["interfaces"][1]["name"].as_str().unwrap();
        let ifbs = self.host.ip_json("link show type ifb");
        let ifb = ifbs.first().map(|it| it["ifname"].as_str().unwrap());
        [Some(link), ifb].map(|link| {
            let qdiscs = self.host.qdiscs(link?);
            let root = qdiscs.into_iter().find(|it| it["root"] == true)?;
            root["options"]["rate"].as_u64()
        })
    }

    /// Returns the rates of the backstop in bytes per second, as nft shows them.
    fn backstop(&self) -> String {
        let listed = self.host.run("nft", &["list", "ruleset"]);
        let mut lines = listed.lines().filter(|it| it.contains("cni:pods/"));
        lines.next().unwrap_or_default().to_owned()
    }

    /// Checks that CHECK and RELOAD agree with the kernel.
    #[track_caller]
    fn expect_agreement(&self, rates: [Option<u64>; 2]) {
        assert_eq!(self.rates(), rates);
        self.tool.on("check", "pods", &self.a).ok();
        self.tool.run(&["reload"]).ok();
        assert_eq!(self.rates(), rates);
        self.tool.on("check", "pods", &self.a).ok();
    }
}

/// Returns limits that a runtime asks for.
fn asked(ingress: u64, egress: u64) -> Value {
    json!({"bandwidth": {"ingressRate": ingress, "egressRate": egress}})
}

#[test]
fn each_direction_is_changed_removed_and_added() {
    let host = Host::new();
    let scene = Scene::new(&host, &asked(10_000_000, 10_000_000));
    assert!(scene.backstop().contains("1375000 bytes/second"));
    scene.limit(&["--egress", "20M"]).ok();
    scene.expect_agreement([Some(1_250_000), Some(2_500_000)]);
    let backstop = scene.backstop();
    assert!(backstop.contains("2750000 bytes/second"), "{backstop}");
    scene.limit(&["--ingress", "8Mi", "--egress", "none"]).ok();
    scene.expect_agreement([Some(1 << 20), None]);
    assert_eq!(scene.backstop(), "");
    scene.limit(&["--egress", "1e6"]).ok();
    scene.expect_agreement([Some(1 << 20), Some(125_000)]);
    assert!(scene.backstop().contains("137500 bytes/second"));
    scene.limit(&["--ingress", "none"]).ok();
    scene.expect_agreement([None, Some(125_000)]);
    scene.tool.on("del", "pods", &scene.a).ok();
    assert_eq!(scene.backstop(), "");
    assert!(host.ip_json("link show type ifb").is_empty());
}

#[test]
fn annotations_are_replaced() {
    let host = Host::new();
    let annotations = json!({"io.kubernetes.cri.pod-annotations": {
        "kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M", "a": "b",
    }});
    let scene = Scene::new(&host, &annotations);
    scene.limit(&["--ingress", "20M"]).ok();
    scene.expect_agreement([Some(2_500_000), Some(1_250_000)]);
    scene.limit(&["--ingress", "none", "--egress", "none"]).ok();
    scene.expect_agreement([None, None]);
    let file = scene.tool.results().read_dir().unwrap().next().unwrap();
    let entry: Value = serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap();
    let kept = &entry["capabilityArgs"]["io.kubernetes.cri.pod-annotations"];
    assert_eq!(*kept, json!({"a": "b"}));
    assert_eq!(entry["kind"], "cniCacheV1");
}

#[test]
fn what_cannot_be_changed_is_refused_and_stays() {
    let host = Host::new();
    let scene = Scene::new(&host, &asked(10_000_000, 10_000_000));
    let before = host.snapshot();
    let refused = |run: Invocation, words: &str| {
        let outcome = run.run();
        assert!(!outcome.status.success(), "{outcome:#?}");
        assert!(outcome.stderr.contains(words), "{outcome:#?}");
    };
    refused(scene.limit(&[]), "nothing to change");
    refused(scene.limit(&["--ingress", "7"]), "8 to 1P");
    refused(scene.limit(&["--ingress", "fast"]), "20M");
    let other = ["limit", "pods", "other", "--ingress", "1M"];
    refused(scene.tool.run(&other), "no result of container other");
    host.snapshot().assert_same_as(&before);
    scene.tool.on("del", "pods", &scene.a).ok();
    let bridge = host.bridge_v4();
    let own = json!({"type": "bandwidth", "egressRate": 10_000_000});
    scene
        .tool
        .configure("pods", &[bridge.config().clone(), own]);
    scene.tool.on("add", "pods", &scene.a).ok();
    refused(scene.limit(&["--ingress", "1M"]), "sets the rates");
}

#[test]
fn change_under_load_keeps_the_connection_and_holds_within_a_second() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add default via 192.0.2.1");
    let scene = Scene::new(&host, &asked(10_000_000, 0));
    let rates = thread::scope(|scope| {
        let to = (&scene.a, "10.1.0.2", "eth0");
        let from = (&outside, "192.0.2.2");
        let flood = scope.spawn(move || traffic::flood(Flood::Tcp, from, to, 6));
        // After two and a half seconds.
        assert!(eventually(|| scene.a.received("eth0") > 3_125_000));
        scene.limit(&["--ingress", "20M"]).ok();
        flood.join().unwrap()
    });
    let megabits: Vec<_> = rates.into_iter().map(|it| it / 1e6).collect();
    assert!(megabits[..2].iter().all(|it| *it < 11.5), "{megabits:?}");
    assert!(
        megabits[4..].iter().all(|it| (14.0..23.0).contains(it)),
        "{megabits:?}"
    );
}

#[test]
fn reload_changes_limits_of_a_changed_cache_in_place() {
    let host = Host::new();
    let scene = Scene::new(&host, &asked(10_000_000, 10_000_000));
    let file = scene.tool.results().read_dir().unwrap().next().unwrap();
    let file = file.unwrap().path();
    let mut entry: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    entry["capabilityArgs"] = asked(30_000_000, 0);
    fs::write(&file, entry.to_string()).unwrap();
    scene.tool.run(&["reload"]).ok();
    scene.expect_agreement([Some(3_750_000), None]);
}
