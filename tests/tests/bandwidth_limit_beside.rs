//! cnitool limit beside DEL, RELOAD and itself, and for a pod with an allocation.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::limited::{Limited, asked, record};
use tests::{Checkpoint, Host, Outcome, Place as _, traffic};

#[test]
fn limit_beside_del_leaves_nothing() {
    let host = Host::new();
    let mut scene = Limited::new(&host, &asked(0, 0));
    let mut failed = 0;
    for round in 0..50 {
        let limit = scene.limit(&["--ingress", "10M", "--egress", "10M"]);
        let del = scene.tool.on("del", "pods", &scene.a);
        thread::scope(|scope| {
            let limit = scope.spawn(|| limit.run());
            traffic::wait_until(Instant::now() + Duration::from_micros(round * 600));
            let deleted = del.run();
            assert!(deleted.status.success(), "{round}: {deleted:#?}");
            let limited: Outcome = limit.join().unwrap();
            failed += u32::from(!limited.status.success());
        });
        assert_eq!(scene.backstop(), "", "{round}");
        assert!(!record("a").exists(), "{round}");
        assert_eq!(scene.tool.results().read_dir().unwrap().count(), 0);
        scene.add(&asked(0, 0));
    }
    assert!(failed > 0);
}

#[test]
fn of_two_limits_at_once_the_kernel_and_the_cache_have_the_same() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let words = [
        ["--ingress", "20M", "--egress", "30M"],
        ["--ingress", "5M", "--egress", "40M"],
    ];
    for round in 0..15 {
        let [one, other] = words.map(|it| scene.limit(&it));
        thread::scope(|scope| {
            let one = scope.spawn(|| one.run());
            let outcomes = [other.run(), one.join().unwrap()];
            let succeeded = outcomes.iter().all(|it| it.status.success());
            assert!(succeeded, "{round}: {outcomes:#?}");
        });
        let bandwidth = scene.cached()["capabilityArgs"]["bandwidth"].clone();
        let rates = ["ingressRate", "egressRate"].map(|it| bandwidth[it].as_u64());
        assert_eq!(scene.rates().map(|it| it.map(|it| it * 8)), rates);
    }
    scene.expect(scene.rates());
}

#[test]
fn reload_never_brings_back_an_older_rate() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let ended = AtomicBool::new(false);
    let reload = scene.tool.run(&["reload"]);
    thread::scope(|scope| {
        let reloading = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                reload.run();
            }
        });
        for megabits in 11..31 {
            let rate = format!("{megabits}M");
            scene.limit(&["--ingress", &rate, "--egress", &rate]).ok();
            for _ in 0..3 {
                assert_eq!(scene.rates(), [Some(megabits * 125_000); 2]);
            }
        }
        ended.store(true, Ordering::Relaxed);
        reloading.join().unwrap();
    });
}

/// A process that was stopped keeps its lock.
#[test]
fn lock_on_an_entry_stops_reload_of_no_other_attachment() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let entry = File::open(scene.entry()).unwrap();
    let b = host.sandbox("b");
    let add = scene.tool.on("add", "pods", &b);
    let result = add.env("CAP_ARGS", asked(0, 20_000_000).to_string()).ok();
    entry.lock().unwrap();
    host.run("nft", &["flush", "ruleset"]);
    let reloaded = scene.tool.run(&["reload"]).run();
    let words = "another process has had the lock";
    assert_eq!(reloaded.stderr.matches(words).count(), 1, "{reloaded:#?}");
    assert!(!reloaded.status.success());
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    assert!(scene.backstop().contains(link), "{}", scene.backstop());
    entry.unlock().unwrap();
    scene.tool.run(&["reload"]).ok();
    scene.expect([Some(1_250_000); 2]);
}

#[test]
fn pod_gets_no_more_than_its_devices() {
    let host = Host::new();
    let checkpoint = Checkpoint::new();
    let devices = ["1", "2"];
    checkpoint
        .give("uid-a", "example.org/egress-10mbit", &devices)
        .write();
    let mut scene = Limited::new(&host, &asked(0, 0));
    scene.tool.on("del", "pods", &scene.a).ok();
    let bridge = host.bridge_v4().config().clone();
    let declared = json!({"bandwidth": true});
    let plugin = json!({"type": "bandwidth", "capabilities": declared, "podResources": true});
    scene.tool.configure("pods", &[bridge, plugin]);
    let add = scene.tool.on("add", "pods", &scene.a);
    scene.result = add.env("CNI_ARGS", "K8S_POD_UID=uid-a").ok();
    scene.expect([None, Some(2_500_000)]);
    let before = (host.snapshot(), fs::read(scene.entry()).unwrap());
    for (rate, words) in [
        ("30M", ["30000000 bit/s", "20000000 bit/s", "code 7"]),
        ("none", ["no limit", "20000000 bit/s", "code 7"]),
    ] {
        let outcome = scene.limit(&["--egress", rate]).run();
        assert!(!outcome.status.success(), "{outcome:#?}");
        let names_all = words.iter().all(|it| outcome.stderr.contains(it));
        assert!(names_all, "{outcome:#?}");
    }
    host.snapshot().assert_same_as(&before.0);
    assert_eq!(fs::read(scene.entry()).unwrap(), before.1);
    scene.limit(&["--egress", "10M"]).ok();
    scene.expect([None, Some(1_250_000)]);
    scene.limit(&["--egress", "20M", "--ingress", "50M"]).ok();
    scene.expect([Some(6_250_000), Some(2_500_000)]);
    // The record of the allocation is lost, and the cache has a higher rate.
    fs::remove_dir_all("/run/cni/bandwidth").unwrap();
    let entry = fs::read_to_string(scene.entry()).unwrap();
    fs::write(scene.entry(), entry.replace("20000000", "90000000")).unwrap();
    scene.tool.run(&["reload"]).ok();
    assert_eq!(scene.rates(), [Some(6_250_000), Some(2_500_000)]);
    scene.expect_nothing_after_del();
}
