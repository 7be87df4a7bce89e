//! cni-agent, part `metrics`: the numbers of the node, and the calls in the plugins' log.

use std::fs::{self, File};

use serde_json::json;
use tests::http::metrics;
use tests::metered::{attach, both};
use tests::{Agent, Host, Place as _, eventually};

#[test]
fn bytes_and_limits_of_pods_are_those_of_the_kernel() {
    let host = Host::new();
    let pod = host.sandbox("a");
    let tool = both(&host);
    attach(&tool, &pod, 8080);
    pod.run(
        "ping",
        &[
            "-n", "-q", "-c", "3", "-s", "1000", "-i", "0.01", "10.1.0.1",
        ],
    );
    let link = tool.ps()[0]["hostLink"].as_str().unwrap().to_owned();
    let _agent = Agent::start(&host, &json!({"metrics": {}}));
    let is_counted = || {
        let Some(metrics) = metrics() else {
            return false;
        };
        let link = host.ip_json(&format!("-statistics link show dev {link}"));
        let kernel = ["tx", "rx"].map(|side| link[0]["stats64"][side]["bytes"].as_u64().unwrap());
        let counted = ["ingress", "egress"].map(|direction| {
            let labels = [
                ("namespace", "shop"),
                ("pod", "a"),
                ("direction", direction),
            ];
            metrics.one("cni_pod_bytes_total", &labels)
        });
        let limit = [("pod", "a"), ("direction", "ingress")];
        assert_eq!(
            metrics.one("cni_pod_limit_bytes_per_second", &limit),
            1_250_000
        );
        assert_eq!(metrics.one("cni_attachments", &[("network", "pods")]), 1);
        // Neighbour discovery of the kernel may be counted between the two.
        counted == kernel && kernel[0] > 3_000
    };
    assert!(eventually(is_counted));
}

#[test]
fn series_of_pods_can_be_left_out() {
    let host = Host::new();
    let tool = both(&host);
    attach(&tool, &host.sandbox("a"), 8080);
    let _agent = Agent::start(&host, &json!({"metrics": {"pods": false}}));
    assert!(eventually(|| metrics().is_some()));
    let metrics = metrics().unwrap();
    assert!(metrics.all("cni_pod_bytes_total", &[]).is_empty());
    assert_eq!(metrics.one("cni_attachments", &[("network", "pods")]), 1);
}

#[test]
fn calls_in_the_log_are_counted_over_rotations() {
    let host = Host::new();
    let tool = both(&host);
    let log = host.dir().join("log");
    let add = |name| {
        let add = tool.on("add", "pods", &host.sandbox(name));
        add.env("CNI_LOG_FILE", &log).ok();
    };
    let rotated = |number| log.with_extension(number);
    add("a");
    let _agent = Agent::start(&host, &json!({"metrics": {"logFiles": [log]}}));
    let adds = || {
        let labels = [("plugin", "bridge"), ("verb", "ADD"), ("code", "0")];
        let metrics = metrics()?;
        metrics
            .all("cni_call_duration_seconds_count", &labels)
            .pop()
    };
    assert!(eventually(|| adds() == Some(1)));
    // Two rotations that rename, since the last reading.
    add("b");
    fs::rename(&log, rotated("2")).unwrap();
    add("c");
    fs::rename(&log, rotated("1")).unwrap();
    add("d");
    assert!(eventually(|| adds() == Some(4)));
    // A rotation that copies and truncates, after which the file grows beyond its earlier length.
    add("e");
    fs::copy(&log, rotated("0")).unwrap();
    File::options()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(0)
        .unwrap();
    for name in ["f", "g", "h"] {
        add(name);
    }
    assert!(eventually(|| adds() == Some(8)));
}
