//! cnitool limit and RELOAD: other limits for a live attachment.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tests::limited::{Limited, asked};
use tests::stream::stream;
use tests::traffic::{self, Flood};
use tests::{Host, Invocation, Place as _};

#[track_caller]
fn refused(run: &Invocation, words: &str) {
    let outcome = run.run();
    assert!(!outcome.status.success(), "{outcome:#?}");
    assert!(outcome.stderr.contains(words), "{words}: {outcome:#?}");
}

#[test]
fn each_direction_is_changed_removed_and_added() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    assert!(scene.backstop().contains("1375000 bytes/second"));
    scene.limit(&["--egress", "20M"]).ok();
    scene.expect([Some(1_250_000), Some(2_500_000)]);
    assert!(scene.backstop().contains("2750000 bytes/second"));
    let both = [
        "--ingress",
        "64k",
        "--egress",
        "none",
        "--interface",
        "eth0",
    ];
    scene.limit(&both).ok();
    scene.expect([Some(8000), None]);
    assert_eq!(scene.backstop(), "");
    scene.limit(&["--egress", "1000000"]).ok();
    scene.expect([Some(8000), Some(125_000)]);
    assert!(scene.backstop().contains("137500 bytes/second"));
    scene.limit(&["--ingress", "none"]).ok();
    scene.expect([None, Some(125_000)]);
    scene.limit(&["--ingress", "1M"]).ok();
    scene.expect([Some(125_000), Some(125_000)]);
    scene.expect_nothing_after_del();
}

#[test]
fn ps_shows_the_time_of_add() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    let file = File::options().write(true).open(scene.entry()).unwrap();
    file.set_modified(hour_ago).unwrap();
    let since = || scene.tool.ps()[0]["since"].clone();
    let before = since();
    scene.limit(&["--ingress", "20M"]).ok();
    assert_eq!(since(), before);
}

#[test]
fn entry_keeps_its_mode_and_unknown_fields() {
    let host = Host::new();
    let annotations = json!({"io.kubernetes.cri.pod-annotations": {
        "kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "10M", "a": "b",
    }});
    let scene = Limited::new(&host, &annotations);
    let mut entry = scene.cached();
    entry["later"] = json!([1]);
    fs::write(scene.entry(), entry.to_string()).unwrap();
    fs::set_permissions(scene.entry(), fs::Permissions::from_mode(0o640)).unwrap();
    scene.limit(&["--ingress", "20M"]).ok();
    scene.expect([Some(2_500_000), Some(1_250_000)]);
    let changed = scene.cached();
    let arguments = &changed["capabilityArgs"];
    assert_eq!(
        arguments["io.kubernetes.cri.pod-annotations"],
        json!({"a": "b"})
    );
    assert_eq!(
        arguments["bandwidth"],
        asked(20_000_000, 10_000_000)["bandwidth"]
    );
    for key in ["kind", "later", "result", "config", "containerId"] {
        assert_eq!(changed[key], entry[key]);
    }
    let mode = fs::metadata(scene.entry()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    scene.limit(&["--ingress", "none", "--egress", "none"]).ok();
    scene.expect([None, None]);
    // Neither the directory of results nor the one above has another file.
    assert_eq!(scene.tool.results().read_dir().unwrap().count(), 1);
    let above = scene.tool.results().parent().unwrap().read_dir().unwrap();
    let hidden = above.filter(|it| {
        it.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')
    });
    assert_eq!(hidden.count(), 0);
}

#[test]
fn what_cannot_change_is_refused_and_stays() {
    let host = Host::new();
    let mut scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let before = host.snapshot();
    refused(&scene.limit(&[]), "--ingress");
    refused(&scene.limit(&["--ingress", "7"]), "1k to 1P");
    refused(&scene.limit(&["--ingress", "fast"]), "20M");
    let other = ["limit", "pods", "other", "--ingress", "1M"];
    refused(&scene.tool.run(&other), "is cached");
    let by_reference = scene
        .limit(&["--egress", "1M"])
        .env("CNI_PATH", tests::REFERENCE);
    refused(&by_reference, "does not support RELOAD");
    host.snapshot().assert_same_as(&before);
    let bridge = host.bridge_v4().config().clone();
    let declared = json!({"bandwidth": true});
    let plugin = json!({"type": "bandwidth", "capabilities": declared});
    let own = json!({"type": "bandwidth", "capabilities": declared, "egressRate": 10_000_000});
    let cases = [
        (vec![bridge.clone()], "no plugin bandwidth"),
        (vec![bridge.clone(), own], "sets rates for all containers"),
        (
            vec![bridge.clone(), json!({"type": "bandwidth"})],
            "takes no rates",
        ),
        (vec![bridge, plugin.clone(), plugin], "twice"),
    ];
    for (plugins, words) in cases {
        scene.tool.on("del", "pods", &scene.a).ok();
        scene.tool.configure("pods", &plugins);
        scene.add(&json!({}));
        refused(&scene.limit(&["--ingress", "1M"]), words);
        refused(&scene.limit(&["--ingress", "1M"]), "pods");
    }
}

#[test]
fn limit_stays_if_its_cached_result_cannot_change() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let limit = scene.limit(&["--egress", "20M"]);
    let results = scene.tool.results();
    let cache = results.parent().unwrap();
    for (directory, words) in [
        (cache, "Read-only file system"),
        (&results, "a mount of its own"),
    ] {
        let directory = directory.to_str().unwrap();
        host.run("mount", &["--bind", directory, directory]);
        host.run("mount", &["-o", "remount,bind,ro", directory]);
        refused(&limit, words);
        scene.expect([Some(1_250_000); 2]);
        host.run("umount", &[directory]);
    }
    limit.ok();
    scene.expect([Some(1_250_000), Some(2_500_000)]);
}

#[test]
fn limits_for_subnets_change() {
    let host = Host::new();
    let mut asked = asked(10_000_000, 10_000_000);
    asked["bandwidth"]["shapedSubnets"] = json!(["192.0.2.0/24"]);
    let scene = Limited::new(&host, &asked);
    let class = || host.tc(&format!("class show dev {}", scene.link()));
    assert!(class().contains("rate 10Mbit"));
    for (words, rate) in [
        (["--ingress", "20M", "--egress", "5M"], "rate 20Mbit"),
        (["--ingress", "none", "--egress", "none"], ""),
        (["--ingress", "30M", "--egress", "40M"], "rate 30Mbit"),
    ] {
        scene.limit(&words).ok();
        assert!(class().contains(rate), "{words:?} {}", class());
        scene.expect(scene.rates());
    }
    scene.expect_nothing_after_del();
}

#[test]
fn limits_of_others_are_not_removed() {
    let host = Host::new();
    let mut scene = Limited::new(&host, &json!({}));
    // The reference made the limits of the attachment.
    let pods = scene.cached();
    let container = pods["containerId"].as_str().unwrap();
    let mut limits = asked(10_000_000, 10_000_000);
    for burst in ["ingressBurst", "egressBurst"] {
        limits["bandwidth"][burst] = json!(1_000_000);
    }
    let reference = host.bandwidth().by_reference();
    scene.result["cniVersion"] = json!("1.0.0");
    let reference = reference
        .with("name", "pods")
        .with("prevResult", scene.result.clone());
    let reference = reference.with("runtimeConfig", limits.clone());
    let add = reference
        .on("ADD", &scene.a)
        .env("CNI_CONTAINERID", container);
    scene.result = add.ok();
    let mut entry = pods.clone();
    entry["capabilityArgs"] = limits;
    entry["result"] = scene.result.clone();
    fs::write(scene.entry(), entry.to_string()).unwrap();
    let before = host.snapshot();
    let both = ["--egress", "20M", "--ingress", "none"];
    refused(&scene.limit(&both), "did not set");
    refused(&scene.limit(&["--egress", "none"]), "did not set");
    refused(&scene.limit(&["--ingress", "none"]), "did not set");
    host.snapshot().assert_same_as(&before);
    assert_eq!(scene.cached(), entry);
    // The rates can change.
    scene.limit(&["--egress", "20M", "--ingress", "5M"]).ok();
    scene.expect([Some(625_000), Some(2_500_000)]);
    assert!(host.ifbs().is_empty());
    refused(&scene.limit(&["--ingress", "none"]), "did not set");
    scene.limit(&["--egress", "none"]).ok();
    scene.expect([Some(625_000), None]);
}

#[test]
fn reload_changes_rates_but_makes_and_removes_no_limit() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let mut entry = scene.cached();
    for (limits, rates) in [
        (
            asked(30_000_000, 40_000_000),
            [Some(3_750_000), Some(5_000_000)],
        ),
        (asked(20_000_000, 0), [Some(2_500_000), Some(5_000_000)]),
        (asked(0, 8_000_000), [Some(2_500_000), Some(1_000_000)]),
    ] {
        entry["capabilityArgs"] = limits;
        fs::write(scene.entry(), entry.to_string()).unwrap();
        scene.tool.run(&["reload"]).ok();
        assert_eq!(scene.rates(), rates);
    }
    scene.limit(&["--ingress", "none"]).ok();
    entry["capabilityArgs"] = asked(30_000_000, 8_000_000);
    fs::write(scene.entry(), entry.to_string()).unwrap();
    scene.tool.run(&["reload"]).ok();
    assert_eq!(scene.rates(), [None, Some(1_000_000)]);
    scene.limit(&["--egress", "none"]).ok();
    fs::write(scene.entry(), entry.to_string()).unwrap();
    scene.tool.run(&["reload"]).ok();
    assert_eq!(
        (scene.rates(), scene.backstop()),
        ([None; 2], String::new())
    );
}

#[test]
fn limits_of_both_directions_stay_if_one_cannot_change() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(0, 10_000_000));
    host.run(
        "tc",
        &["qdisc", "add", "dev", scene.link(), "root", "pfifo"],
    );
    let before = host.snapshot();
    refused(
        &scene.limit(&["--ingress", "5M", "--egress", "7M"]),
        "pfifo",
    );
    host.snapshot().assert_same_as(&before);
    scene.limit(&["--egress", "7M"]).ok();
    assert_eq!(scene.rates(), [None, Some(875_000)]);
}

#[test]
fn entry_of_another_attachment_with_the_same_file_name_is_refused() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let limit = scene.limit(&["--egress", "20M"]);
    let mut entry = scene.cached();
    entry["containerId"] = "other".into();
    fs::write(scene.entry(), entry.to_string()).unwrap();
    refused(&limit, "of another attachment");
    assert_eq!(scene.rates(), [Some(1_250_000); 2]);
}

#[test]
fn entry_of_a_second_directory_changes() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let first = scene.tool.results();
    let second = first.parent().unwrap().join("multus/results");
    fs::create_dir_all(&second).unwrap();
    let from = scene.entry();
    let to = second.join(from.file_name().unwrap());
    let run = scene.limit(&["--ingress", "20M"]);
    let other = fs::read(&from).unwrap();
    fs::rename(&from, &to).unwrap();
    run.ok();
    let entry: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
    assert_eq!(entry["capabilityArgs"], asked(20_000_000, 10_000_000));
    assert!(!from.exists());
    scene.expect([Some(2_500_000), Some(1_250_000)]);
    assert_ne!(fs::read(&to).unwrap(), other);
}

#[test]
fn connection_under_load_goes_on_with_the_new_rate_within_a_second() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add default via 192.0.2.1");
    let scene = Limited::new(&host, &asked(10_000_000, 0));
    let rates = thread::scope(|scope| {
        let to = (&scene.a, "10.1.0.2", "eth0");
        let from = (&outside, "192.0.2.2");
        let flood = scope.spawn(move || traffic::flood(Flood::Tcp, from, to, 7));
        traffic::wait_until(Instant::now() + Duration::from_millis(2500));
        scene.limit(&["--ingress", "20M"]).ok();
        flood.join().unwrap()
    });
    let megabits: Vec<_> = rates.into_iter().map(|it| it / 1e6).collect();
    assert!(megabits[..2].iter().all(|it| *it < 11.5), "{megabits:?}");
    let later = &megabits[4..];
    assert!(later.iter().all(|it| *it < 23.0), "{megabits:?}");
    assert!(later.iter().any(|it| *it > 16.0), "{megabits:?}");
}

#[test]
fn no_packet_is_lost_without_a_drop_while_limits_change() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("route add default via 192.0.2.1");
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let ends = [
        ("--ingress", &outside, (&scene.a, "10.1.0.2")),
        ("--egress", &scene.a, (&outside, "192.0.2.2")),
    ];
    for (direction, client, server) in ends {
        let dropped = || host.dropped(scene.link()) + scene.a.dropped("eth0");
        let before = dropped();
        // The stream has 4 Mbit/s.
        let counts = stream(client, server, || {
            for rate in ["20M", "100M", "1G", "10M", "40M"] {
                scene.limit(&[direction, rate]).ok();
                traffic::wait_until(Instant::now() + Duration::from_millis(100));
            }
        });
        let drops = dropped() - before;
        let arrived = counts.received + counts.without_room;
        assert!(counts.sent > 100, "{counts:?}");
        assert!(arrived + drops >= counts.sent, "{counts:?}, {drops} drops");
        // A much lower rate drops what waits.
        assert!(drops * 20 < counts.sent, "{counts:?}, {drops} drops");
    }
}
