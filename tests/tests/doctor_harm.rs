//! cnitool doctor: runs each command that it prints for a state, with a live pod beside it. No
//! command may take the pod's network.

use std::fs;

use serde_json::{Value, json};
use tests::{Findings, Host, Place as _, Sandbox, Tool, eventually};

/// Returns the plugin `bridge` with this bridge and range, and a default route for its pods.
fn bridge(host: &Host, name: &str, range: &Value) -> Value {
    let bridge = host
        .bridge()
        .with("bridge", name)
        .with("isDefaultGateway", true);
    bridge
        .with("ipam.ranges", json!([[range]]))
        .config()
        .clone()
}

/// Runs all commands that doctor prints, and once more those that it prints then. The pod must
/// reach its gateway meanwhile. Returns the findings at the beginning.
#[track_caller]
fn obey(host: &Host, tool: &Tool<'_>, (pod, gateway): (&Sandbox, &str)) -> Findings {
    host.script("vi", "test -f \"$1\"");
    let first = tool.doctor();
    let commands = first.commands();
    for command in commands.into_iter().chain(tool.doctor().commands()) {
        tool.obey(&command);
        assert!(pod.pings(gateway), "{command}: {:#?}", tool.doctor());
    }
    first
}

#[test]
fn two_networks_of_one_bridge_keep_their_addresses() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.tool();
    for (name, subnet) in [("one", "10.1.0.0/24"), ("two", "10.2.0.0/24")] {
        tool.configure(name, &[bridge(&host, "cni0", &json!({"subnet": subnet}))]);
    }
    tool.add("one", &a, &[]);
    assert!(!tool.on("add", "two", &b).run().status.success());
    let findings = obey(&host, &tool, (&a, "10.1.0.1"));
    let words = [
        "cni0 has 10.1.0.1/24",
        "two needs 10.2.0.1/24",
        "a bridge of its own",
    ];
    findings.expect("problem", "bridge", &words);
}

#[test]
fn range_that_is_full_of_live_pods_is_not_collected() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    tool.configure(
        "pods",
        &[bridge(&host, "cni0", &json!({"subnet": "10.1.0.0/30"}))],
    );
    tool.add("pods", &a, &[]);
    let findings = obey(&host, &tool, (&a, "10.1.0.1"));
    findings.expect(
        "problem",
        "range",
        &["1 of 1 addresses are held", "larger range"],
    );
    assert_eq!(findings.fixes("range"), ["cnitool ps"]);
}

#[test]
fn gateway_outside_the_subnet_is_reported_as_such() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.tool();
    tool.configure(
        "pods",
        &[bridge(&host, "cni0", &json!({"subnet": "10.1.0.0/24"}))],
    );
    tool.add("pods", &a, &[]);
    let range = json!({"subnet": "10.2.0.0/24", "gateway": "10.9.0.1"});
    tool.configure("zz", &[bridge(&host, "cni1", &range)]);
    let refused = tool.on("add", "zz", &b).run().stderr;
    assert!(refused.contains("invalid gateway"), "{refused}");
    let findings = obey(&host, &tool, (&a, "10.1.0.1"));
    let words = ["zz.conflist: the gateway 10.9.0.1 is outside 10.2.0.0/24"];
    findings.expect("warning", "range", &words);
    assert!(!findings.holds("warning", "firewall", &[]), "{findings:#?}");
    fs::remove_file(host.dir().join("net.d/pods.conflist")).unwrap();
    tool.doctor().expect("problem", "range", &words);
}

/// The plugin `flannel` delegates to the plugin `bridge` of this suite.
#[test]
fn pods_that_flannel_attached_are_judged() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    fs::create_dir_all("/run/flannel").unwrap();
    fs::write("/run/flannel/subnet.env", "FLANNEL_SUBNET=10.1.0.1/24\n").unwrap();
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": host.lease_dir()});
    let delegate = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam,
        "isGateway": true, "isDefaultGateway": true});
    fs::write(host.dir().join("delegate"), delegate.to_string()).unwrap();
    let delegate = host.dir().join("delegate").display().to_string();
    host.script(
        "flannel",
        &format!("PATH=$CNI_PATH exec bridge <{delegate}"),
    );
    let tool = host.tool();
    let ipam = json!({"dataDir": host.lease_dir()});
    let delegate = json!({"isDefaultGateway": true});
    tool.configure(
        "pods",
        &[json!({"type": "flannel", "ipam": ipam, "delegate": delegate})],
    );
    tool.add("pods", &a, &[]);
    tool.add("pods", &b, &[]);
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    findings.expect("ok", "firewall", &["pods on cni0 pass"]);
    findings.expect("ok", "range", &["10.1.0.0/24"]);
    b.remove();
    let words = ["no longer exist: 10.1.0.3", "cnitool gc pods"];
    assert!(eventually(|| tool
        .doctor()
        .holds("warning", "lease", &words)));
    obey(&host, &tool, (&a, "10.1.0.1"));
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    assert_eq!(host.leases("pods").len(), 1);
}
