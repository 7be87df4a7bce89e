//! `cni-agent`: the metrics of what the kubelet lists by its pod resources API, also while it fails.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;

use serde_json::{Value, json};
use tests::cri::{Manner, peer};
use tests::devices::{EGRESS, TUN, node, root, three, tun};
use tests::http::metrics;
use tests::repair::health;
use tests::{Agent, Checkpoint, Host, Kubelet, PodResources, eventually, http, leaks};

/// Starts an agent with devices and metrics.
fn agent(host: &Host) -> Agent {
    let mut config: Value = tun(host);
    config["metrics"] = json!({});
    let agent = Agent::start(host, &config);
    let is_served = || http::get(9799, "/healthz").is_ok();
    assert!(eventually(is_served), "{}", agent.log());
    agent
}

/// Returns the devices that a pod has; none if the series is absent.
fn allocated(pod: &str) -> Option<u64> {
    let labels = [
        ("namespace", "default"),
        ("pod", pod),
        ("container", "main"),
    ];
    metrics()
        .unwrap()
        .all("cni_agent_allocated_devices", &labels)
        .pop()
}

fn age() -> Option<u64> {
    metrics()
        .unwrap()
        .all("cni_agent_allocated_devices_age_seconds", &[])
        .pop()
}

#[test]
fn metrics_have_what_the_kubelet_allocated_and_ask_seldom() {
    let host = node();
    let _kubelet = Kubelet::start(&root(&host));
    let resources = PodResources::serve(&root(&host));
    // The kubelet lists devices of different NUMA nodes apart.
    resources.gives("web", &[(TUN, 1), ("example.org/gpu", 4), (TUN, 1)]);
    resources.gives("other", &[("example.org/gpu", 1)]);
    let agent = agent(&host);
    assert!(eventually(|| allocated("web").is_some()));
    for _ in 0..20 {
        assert_eq!((allocated("web"), allocated("other")), (Some(2), None));
    }
    assert!(resources.lists() < 5, "{}", resources.lists());
    assert!(eventually(|| age().is_some_and(|it| it < 5)));
    // This kubelet has GetAllocatableResources turned off.
    assert!(
        metrics()
            .unwrap()
            .all("cni_agent_kubelet_devices", &[])
            .is_empty()
    );
    assert!(!agent.log().contains("devices: kubelet"), "{}", agent.log());
}

#[test]
fn without_series_of_pods_the_metrics_have_sums() {
    let host = node();
    let _kubelet = Kubelet::start(&root(&host));
    let resources = PodResources::serve(&root(&host));
    resources.gives("web", &[(TUN, 2)]);
    resources.gives("other", &[(TUN, 1)]);
    let mut config = tun(&host);
    config["metrics"] = json!({"pods": false});
    let _agent = Agent::start(&host, &config);
    let sum = "cni_agent_allocated_devices{resource=\"example.org/tun\"} 3\n";
    let text = || http::get(9799, "/metrics").unwrap_or_default();
    assert!(eventually(|| text().contains(sum)), "{}", text());
    assert!(!text().contains("pod="), "{}", text());
}

#[test]
fn without_an_answer_the_metrics_are_absent() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = agent(&host);
    kubelet.wait_for(TUN, 3);
    assert_eq!((allocated("web"), age()), (None, None));
    agent.says("devices: no list of allocated devices: list by ");
    assert_eq!(health(), "ok\n", "not every node has the socket");
}

#[test]
fn the_last_answer_stays_with_its_age_whatever_the_kubelet_does() {
    let host = node();
    let _kubelet = Kubelet::start(&root(&host));
    let resources = PodResources::serve(&root(&host));
    resources.gives("web", &[(TUN, 2)]);
    let agent = agent(&host);
    assert!(eventually(|| allocated("web") == Some(2)));
    for (manner, words) in [
        (Manner::Hangs, "the kubelet does not answer"),
        (
            Manner::Fails("busy\n".repeat(2_000)),
            "Internal error: busy\\n",
        ),
        (Manner::Floods(17 << 20), "decoded message length too large"),
    ] {
        resources.behaves(manner);
        expect_kept(&agent, words);
    }
    assert!(eventually(|| age() >= Some(9)), "{:?}", age());
    drop(resources);
    expect_kept(&agent, "connect: ");
    assert!(
        agent.log().lines().all(|it| it.len() < 500),
        "{}",
        agent.log()
    );
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    let resources = PodResources::serve(&root(&host));
    resources.gives("next", &[(TUN, 1)]);
    let is_fresh = || (allocated("web"), allocated("next")) == (None, Some(1));
    assert!(eventually(is_fresh), "{}", agent.log());
    assert!(age() < Some(9), "{:?}", age());
    agent.end();
}

#[test]
fn the_last_answer_stays_if_another_service_has_the_socket() {
    let host = node();
    let _kubelet = Kubelet::start(&root(&host));
    let resources = PodResources::serve(&root(&host));
    resources.gives("web", &[(TUN, 2)]);
    let agent = agent(&host);
    assert!(eventually(|| allocated("web") == Some(2)));
    drop(resources);
    let garbage = |mut it: UnixStream| while it.write_all(&[0xa5; 4096]).is_ok() {};
    let silent = |mut it: UnixStream| drop(it.read_to_end(&mut Vec::new()));
    let behaviours: [fn(UnixStream); 2] = [garbage, silent];
    for behaves in behaviours {
        let (call, calls) = mpsc::channel();
        peer(&root(&host).join("pod-resources/kubelet.sock"), move |it| {
            call.send(()).ok();
            behaves(it);
        });
        for _ in 0..2 {
            let is_called = || {
                assert_eq!(allocated("web"), Some(2));
                calls.try_recv().is_ok()
            };
            assert!(eventually(is_called), "{}", agent.log());
        }
    }
    assert!(agent.peak() < 60 << 10, "{} KiB", agent.peak());
    agent.end();
}

/// Waits until the kubelet's failure is in the log. The devices stay.
#[track_caller]
fn expect_kept(agent: &Agent, words: &str) {
    let is_said = || {
        assert_eq!(allocated("web"), Some(2));
        agent.log().contains(words)
    };
    assert!(eventually(is_said), "{words}: {}", agent.log());
}

#[test]
fn a_resource_that_another_plugin_took_is_reported_and_registered_again() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let resources = PodResources::serve(&root(&host));
    resources.lists_devices(TUN, 3);
    resources.lists_devices("example.org/gpu", 7);
    let agent = agent(&host);
    kubelet.wait_for(TUN, 3);
    let listed = || {
        let metrics = metrics().unwrap();
        metrics
            .all("cni_agent_kubelet_devices", &[("resource", TUN)])
            .pop()
    };
    assert!(eventually(|| listed() == Some(3)));
    assert_eq!(health(), "ok\n");
    // The plugin of another vendor has registered the resource since.
    resources.lists_devices(TUN, 2);
    let words =
        "devices: kubelet: the kubelet may allocate 2 devices of example.org/tun, not the 3";
    let is_reported = || listed() == Some(2) && health().starts_with(words);
    assert!(eventually(is_reported), "{} {}", health(), agent.log());
    // That plugin ends. The kubelet still reads the agent's list, but allocates none of its devices.
    kubelet.lost_to_another(TUN);
    resources.lists_devices(TUN, 0);
    kubelet.wait_for(TUN, 3);
    resources.lists_devices(TUN, 3);
    assert_eq!(kubelet.registrations().len(), 2);
    agent.says("devices: kubelet: works again");
    assert_eq!(health(), "ok\n");
    let log = agent.log();
    let good = log.find("works again").unwrap();
    let registered = log.find("no longer lists devices of example.org/tun");
    assert!(registered.is_some_and(|it| it < good), "{log}");
    kubelet.allocate("pod", TUN, 1).unwrap();
}

/// Attaches a pod of the kubelet by bridge and bandwidth with `podResources`.
fn attach(host: &Host, name: &str) {
    let sandbox = host.sandbox(name);
    let bandwidth = json!({"type": "bandwidth", "podResources": true});
    let tool = host.tool();
    tool.configure("pods", &[host.bridge_v4().config().clone(), bandwidth]);
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID=uid-{name}"
    );
    tool.on("add", "pods", &sandbox).env("CNI_ARGS", args).ok();
}

#[test]
fn a_pod_with_devices_of_bandwidth_and_no_limit_is_reported() {
    let host = node();
    let _kubelet = Kubelet::start(&root(&host));
    let resources = PodResources::serve(&root(&host));
    for name in ["lost", "good", "young", "absent"] {
        resources.gives(name, &[(EGRESS, 1), (TUN, 1)]);
    }
    resources.gives("tun", &[(TUN, 1)]);
    let checkpoint = Checkpoint::new().give("uid-good", EGRESS, &["egress-00001"]);
    checkpoint.write();
    for name in ["lost", "good", "tun"] {
        attach(&host, name);
    }
    leaks::age(Path::new("/var/lib/cni"));
    attach(&host, "young");
    let mut config = three(&host);
    config["metrics"] = json!({});
    let agent = Agent::start(&host, &config);
    agent.says("devices: limits: default/lost has devices of bandwidth and no limit");
    assert!(
        health().contains("default/lost has devices"),
        "{}",
        health()
    );
}
