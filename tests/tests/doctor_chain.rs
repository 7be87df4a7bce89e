//! cnitool doctor: lists whose plugins do not fit together, and values that are probably mistakes.

use std::fs;

use serde_json::{Value, json};
use tests::{Findings, Host, Place as _, Tool};

/// Returns the network's plugin `bridge` with a default route for its pods.
fn bridge(host: &Host) -> Value {
    let bridge = host.bridge_v4().with("isDefaultGateway", true);
    bridge.config().clone()
}

/// Configures the network `pods` with these plugins, and checks that its ADD fails.
#[track_caller]
fn refused(host: &Host, tool: &Tool<'_>, plugins: &[Value]) {
    tool.configure("pods", plugins);
    let pod = host.sandbox("refused");
    let outcome = tool.on("add", "pods", &pod).run();
    assert!(!outcome.status.success(), "{plugins:?}");
    tool.on("del", "pods", &pod).run();
    pod.remove();
}

#[test]
fn list_that_begins_with_a_chained_plugin_is_a_problem() {
    let host = Host::new();
    let tool = host.tool();
    for plugin in ["portmap", "bandwidth", "firewall", "tuning"] {
        let all = json!({"portMappings": true, "bandwidth": true});
        let first = json!({"type": plugin, "capabilities": all});
        refused(&host, &tool, &[first, bridge(&host)]);
        let words = format!("pods.conflist: {plugin} is the first plugin");
        let words = [&words, "Every ADD fails", "vi "];
        tool.doctor().expect("problem", "chain", &words);
    }
    tool.write(
        "00.conflist",
        r#"{"name": "a", "plugins": [{"type": "loopback"}]}"#,
    );
    tool.doctor()
        .expect("warning", "chain", &["tuning is the first"]);
}

#[test]
fn two_plugins_that_make_the_interface_are_a_problem() {
    let host = Host::new();
    let tool = host.tool();
    let [one, other] = [bridge(&host), host.ptp().config().clone()];
    refused(&host, &tool, &[one, other]);
    let words = ["bridge and ptp both make the interface", "every ADD fails"];
    tool.doctor().expect("problem", "chain", &words);
}

#[test]
fn two_plugins_that_limit_the_same_pods_are_reported() {
    let host = Host::new();
    let tool = host.tool();
    let bandwidth = |keys: Value| {
        let mut plugin = json!({"type": "bandwidth"});
        let members = keys.as_object().unwrap().clone();
        plugin.as_object_mut().unwrap().extend(members);
        plugin
    };
    let sends = || bandwidth(json!({"egressRate": 10_000_000}));
    let receives = || bandwidth(json!({"ingressRate": 10_000_000}));
    let asked = || bandwidth(json!({"capabilities": {"bandwidth": true}}));
    let words = [
        "bandwidth and bandwidth both limit what pods send",
        "the last one applies",
    ];
    for first in [sends(), asked()] {
        tool.configure("pods", &[bridge(&host), first, sends()]);
        tool.doctor().expect("warning", "chain", &words);
    }
    tool.configure("pods", &[bridge(&host), receives(), receives()]);
    let words = ["both limit what pods receive", "the last one applies"];
    tool.doctor().expect("warning", "chain", &words);
    tool.configure("pods", &[bridge(&host), receives(), sends()]);
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    let pod = host.sandbox("pod");
    tool.add("pods", &pod, &[]);
}

/// A plugin of others may make the interface, also beside one of this suite.
#[test]
fn plugins_of_others_fit_everywhere() {
    let host = Host::new();
    let tool = host.tool();
    let versions = r#"{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}"#;
    host.script("stranger", &format!("echo '{versions}'"));
    let stranger = || json!({"type": "stranger", "ipam": {"type": "stranger"}});
    let portmap = || json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let loopback = || json!({"type": "loopback"});
    for plugins in [
        vec![stranger(), portmap()],
        vec![stranger(), bridge(&host), stranger(), portmap()],
        vec![loopback(), bridge(&host), portmap(), portmap()],
    ] {
        tool.configure("pods", &plugins);
        let findings = tool.doctor();
        assert_eq!(findings.status, 0, "{findings:#?}");
    }
}

#[test]
fn rate_in_another_unit_is_reported_by_doctor_and_status() {
    let host = Host::new();
    let tool = host.tool();
    let limit = |rate: u64| json!({"type": "bandwidth", "ingressRate": rate});
    tool.configure("pods", &[bridge(&host), limit(20)]);
    let words = ["bandwidth: ingressRate is 20 bit/s", "takes 600 s"];
    tool.doctor().expect("warning", "key", &words);
    let status = tool.run(&["status", "pods"]).run();
    assert!(status.status.success(), "{status:#?}");
    assert!(status.stderr.contains(words[1]), "{status:#?}");
    tool.configure("pods", &[bridge(&host), limit(12_000)]);
    assert_eq!(tool.doctor().status, 0);
}

#[test]
fn address_that_is_there_twice_is_reported_by_doctor_and_status() {
    let host = Host::new();
    let tool = host.tool();
    let address = json!({"address": "10.1.0.9/24", "gateway": "10.1.0.1"});
    let fixed = |addresses: Value| json!({"type": "static", "addresses": addresses});
    let with = |ipam: Value| {
        let mut plugin = bridge(&host);
        plugin["ipam"] = ipam;
        plugin
    };
    refused(&host, &tool, &[with(fixed(json!([address, address])))]);
    let words = ["static: ipam.addresses has 10.1.0.9 twice", "Every ADD"];
    tool.doctor().expect("problem", "key", &words);
    let status = tool.run(&["status", "pods"]).run();
    assert!(status.status.success(), "{status:#?}");
    assert!(status.stderr.contains("has 10.1.0.9 twice"), "{status:#?}");

    tool.configure("pods", &[with(fixed(json!([address])))]);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    tool.add("pods", &a, &[]);
    assert_eq!(tool.doctor().status, 0);
    tool.add("pods", &b, &[]);
    let words = ["10.1.0.9 of pods belongs to cni:pods/"];
    tool.doctor().expect("problem", "pod", &words);
}

/// containerd 2.0 has libcni 1.2.3, which knows 1.1.0. containerd 1.7 has libcni 1.1.2.
#[test]
fn version_that_containerd_does_not_support_is_a_problem() {
    let host = Host::new();
    let tool = host.pods();
    let doctor = || {
        let scripts = host.dir().join("plugins").display().to_string();
        let path = format!("{scripts}:{}", std::env::var("PATH").unwrap());
        Findings::of(&tool.run(&["doctor", "--json"]).env("PATH", path).run())
    };
    let install = |module: &str, version: &str| {
        let printed = format!("containerd github.com/containerd/{module} {version} 0123abc");
        host.script("containerd", &format!("echo {printed}"));
    };
    install("containerd", "1.7.29~ds1");
    // It does not run.
    doctor().expect_ok("conflist");
    fs::create_dir_all("/run/containerd").unwrap();
    fs::write("/run/containerd/containerd.sock", "").unwrap();
    let words = ["containerd 1.7.29~ds1 does not support version 1.1.0"];
    doctor().expect("problem", "conflist", &words);
    install("containerd/v2", "v2.0.0");
    let findings = doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    install("containerd", "v1.6.39");
    let findings = doctor();
    findings.expect("problem", "conflist", &["containerd 1.6.39"]);
    let pod = host.sandbox("pod");
    tool.add("pods", &pod, &[]);
    for command in findings.fixes("conflist") {
        tool.obey(&command);
    }
    assert_eq!(doctor().status, 0);
    assert!(pod.pings("10.1.0.1"));
}
