//! cnitool where a live sandbox cannot be seen: no command removes anything of it.

use std::fs;

use serde_json::json;
use tests::leaks::lease_of;
use tests::{Host, Inhabitant, Place as _, Sandbox, Tool, eventually};

/// Configures the network `pods`: this main plugin with host-local, and this suite's portmap.
fn network<'h>(host: &'h Host, main: &str) -> Tool<'h> {
    let tool = host.tool();
    let ipam = host.bridge_v4().config()["ipam"].clone();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    tool.configure("pods", &[json!({"type": main, "ipam": ipam}), portmap]);
    tool
}

/// Makes the path of the live sandbox a plain file, as in a debug pod that is older than the
/// sandbox.
fn hide(pod: &Sandbox) -> Inhabitant {
    let inhabitant = pod.inhabitant();
    pod.unmount();
    inhabitant
}

/// Makes the cached result, the lease and the rule that the Go plugins leave for a pod with a host
/// port.
fn attach_by_reference(host: &Host, tool: &Tool<'_>, pod: &Sandbox) {
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]});
    tool.remember("pods", (pod, &result));
    lease_of(host, pod.name(), "10.1.0.2");
    let rule = format!(
        "tcp dport 8080 dnat to 10.1.0.2:80 comment \"{}\"",
        pod.name()
    );
    let file = host.dir().join("hostport.nft");
    let table = format!("table ip cni_hostport {{\n chain hostports {{\n {rule}\n }}\n}}\n");
    fs::write(&file, table).unwrap();
    host.run("nft", &["--file", file.to_str().unwrap()]);
}

fn has_rule(host: &Host) -> bool {
    let rules = host.run("nft", &["list", "ruleset"]);
    rules.contains("dnat to 10.1.0.2:80")
}

#[test]
fn rules_of_a_pod_without_link_on_the_host_stay() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = network(&host, "weave-net");
    attach_by_reference(&host, &tool, &a);
    let _live = hide(&a);
    let words = ["container a", "may be live: kept", "nothing was removed"];
    tool.run(&["gc", "pods"]).expect_failure(&words);
    let told = tool.lines(&["migrate", "--remove"]);
    let reason = ", a, may be live: plugin weave-net makes no link";
    assert!(
        told.len() == 1 && told[0].starts_with("unseen ") && told[0].contains(reason),
        "{told:#?}"
    );
    assert!(has_rule(&host));
    let words = ["may be live: 1", "plugin weave-net makes no link"];
    let findings = tool.doctor();
    findings.expect("ok", "remnant", &words);
    assert_eq!(findings.fixes("remnant"), [""; 0]);

    // DEL deletes the cached result and the lease.
    fs::remove_file(tool.remembered("pods", &a)).unwrap();
    fs::remove_file(host.lease_dir().join("pods/10.1.0.2")).unwrap();
    tool.doctor()
        .expect("warning", "remnant", &["for deleted pods: 1"]);
    tool.lines(&["migrate", "--remove"]);
    assert!(!has_rule(&host));
}

/// gVisor deletes the addresses in the namespace of a sandbox.
#[test]
fn rules_stay_while_a_link_may_be_of_any_pod() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = network(&host, "bridge");
    attach_by_reference(&host, &tool, &a);
    host.ip("link add cni0 type bridge");
    host.ip("link add veth7 type veth peer name eth0 netns a");
    host.ip("link set veth7 master cni0");
    let live = hide(&a);
    let words = ["container a", "may be live: kept", "nothing was removed"];
    tool.run(&["gc", "pods"]).expect_failure(&words);
    tool.run(&["migrate", "--remove"])
        .expect_failure(&["no address of the sandbox behind veth7"]);
    assert!(has_rule(&host));
    let findings = tool.doctor();
    findings.expect("ok", "remnant", &["may be live: 1", "behind veth7"]);
    assert_eq!(findings.fixes("remnant"), [""; 0]);

    // The end of the sandbox is proven, although its cached result and its lease remain.
    drop(live);
    assert!(eventually(|| !host.has_link("veth7")));
    tool.doctor()
        .expect("warning", "remnant", &["for deleted pods: 1"]);
    let told = tool.lines(&["migrate", "--remove"]);
    assert!(told[0].starts_with("removed "), "{told:#?}");
    assert!(!has_rule(&host));
}

#[test]
fn elements_of_a_pod_without_link_on_the_host_are_reported_without_command() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]});
    host.script("weave-net", &format!("echo '{result}'"));
    let tool = network(&host, "weave-net");
    tool.add("pods", &a, &["8080:80"]);
    assert!(!tool.doctor().holds("warning", "element", &[]));
    let _live = hide(&a);
    let is_reported = || {
        let words = ["may be live: plugin weave-net makes no link", "cni-portmap"];
        let findings = tool.doctor();
        findings.expect("warning", "element", &words);
        assert_eq!(findings.fixes("element"), [""; 0]);
    };
    is_reported();
    // The result may be cached where doctor does not look.
    fs::remove_dir_all(tool.results()).unwrap();
    is_reported();
}
