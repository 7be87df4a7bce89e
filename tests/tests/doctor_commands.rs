//! cnitool doctor: runs commands that it prints, each on the state for which it prints them, beside a
//! live pod. Other files run the commands that `commands.rs` of the harness lists for them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;
use tests::commands::FORMS;
use tests::{Findings, Host, Place as _, Sandbox, Tool};

/// Returns cnitool with the network `pods`, and a pod of it.
fn with_a_pod(host: &Host) -> (Tool<'_>, Sandbox) {
    let (tool, pod) = (host.pods(), host.sandbox("a"));
    tool.add("pods", &pod, &["8080:80"]);
    (tool, pod)
}

/// Runs the commands of this subject in the directory of the test. The pod must reach its gateway
/// after each.
#[track_caller]
fn obey((host, tool, pod): (&Host, &Tool<'_>, &Sandbox), findings: &Findings, subject: &str) {
    let commands = findings.fixes(subject);
    assert!(!commands.is_empty(), "{findings:#?}");
    std::env::set_current_dir(host.dir()).unwrap();
    for command in commands {
        tool.obey(&command);
        assert!(pod.pings("10.1.0.1"), "{command}");
    }
}

/// Replaces the host's /etc by a copy.
fn copy_etc(host: &Host) {
    host.sh("cp -a /etc /run/test/etc && mount --bind /run/test/etc /etc");
}

#[test]
fn each_command_has_a_test_that_runs_it() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (form, test) in FORMS.iter().filter(|it| !it.1.starts_with("none: ")) {
        let (file, name) = test.split_once(' ').unwrap();
        let source = fs::read_to_string(directory.join(format!("{file}.rs"))).unwrap();
        let begin = source.find(&format!("\nfn {name}() {{"));
        let begin = begin.unwrap_or_else(|| panic!("{form}: no test {test}"));
        let body = source[begin..].split("\n}\n").next().unwrap();
        let runs = ["obey(", "fix(", "fixes("]
            .iter()
            .any(|it| body.contains(it))
            || body.contains("closed_and_opened(");
        assert!(runs, "{form}: {test} runs no command");
    }
}

#[test]
fn what_only_lists_changes_nothing() {
    let host = Host::new();
    let (tool, pod) = with_a_pod(&host);
    // A port of another MTU, which no attachment explains.
    host.ip("link add other mtu 1400 master cni1 type veth peer name inside");
    // A hostPort of two pods, on which a process listens.
    let element = "192.0.2.1 . tcp . 8080 comment \"cni:pods/b/eth0\" : 10.1.0.9 . 80";
    let element = format!("add element inet cni-portmap address-ports4 {{ {element} }}");
    host.run("nft", &[&element]);
    let _listener = TcpListener::bind("0.0.0.0:8080").unwrap();
    // Rules that drop packets to the node, or redirect them.
    host.run("nft", &["add table inet guard"]);
    let chain = "add chain inet guard input { type filter hook input priority 0 ; }";
    host.run("nft", &[chain]);
    host.run("nft", &["add rule inet guard input udp dport 53 drop"]);
    host.tmpfs(host.lease_dir(), "size=64k");
    fs::write(host.lease_dir().join("large"), vec![0; 64 << 10]).unwrap();
    let findings = tool.doctor();
    for begin in [
        "df -h ",
        "ip -details link show master cni1",
        "ip -details link show other",
        "nft list table inet cni-portmap",
        "nft -a list chain inet guard input",
        "ss -lnp ",
    ] {
        let commands = findings.commands();
        let is_printed = commands.iter().any(|it| it.starts_with(begin));
        assert!(is_printed, "{begin}: {commands:#?}");
    }
    let before = host.snapshot();
    for subject in ["disk", "mtu", "bridge", "hostport", "firewall"] {
        obey((&host, &tool, &pod), &findings, subject);
    }
    host.snapshot().assert_same_as(&before);
}

#[test]
fn rules_of_legacy_iptables_are_listed() {
    let host = Host::new();
    let (tool, pod) = with_a_pod(&host);
    host.sh("iptables-legacy -A INPUT -p udp --dport 53 -j DROP");
    let findings = tool.doctor();
    let list = "iptables-legacy-save -c".to_owned();
    assert!(findings.fixes("firewall").contains(&list));
    obey((&host, &tool, &pod), &findings, "firewall");
}

#[test]
fn files_are_moved() {
    let host = Host::new();
    let (tool, pod) = with_a_pod(&host);
    let networks = host.dir().join("net.d");
    let list = fs::read_to_string(networks.join("pods.conflist")).unwrap();
    tool.write("zz.conflist", &list);
    let findings = tool.doctor();
    findings.expect("warning", "conflist", &["network pods is in"]);
    obey((&host, &tool, &pod), &findings, "conflist");
    assert_eq!(tool.doctor().status, 0);
    fs::rename(networks.join("pods.conflist"), networks.join("pods.conf")).unwrap();
    let findings = tool.doctor();
    findings.expect("problem", "conflist", &["pods.conf", "a list of plugins"]);
    obey((&host, &tool, &pod), &findings, "conflist");
    assert_eq!(tool.doctor().status, 0);
    // The new name is that of another file.
    tool.write("pods.conf", &list.replace("10.1.0.0", "10.9.0.0"));
    let findings = tool.doctor();
    findings.expect("problem", "conflist", &["pods.conf", "a list of plugins"]);
    obey((&host, &tool, &pod), &findings, "conflist");
    let kept = fs::read_to_string(networks.join("pods.conflist")).unwrap();
    assert!(kept == list && networks.join("pods.conf.disabled").exists());
    assert_eq!(tool.doctor().status, 0);
    fs::rename(
        networks.join("pods.conflist"),
        host.dir().join("NETWORK.conflist"),
    )
    .unwrap();
    let findings = tool.doctor();
    findings.expect("problem", "conflist", &["no network in"]);
    obey((&host, &tool, &pod), &findings, "conflist");
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
}

#[test]
fn plugins_are_replaced() {
    let host = Host::new();
    let (tool, pod) = with_a_pod(&host);
    let list = json!({"name": "zz", "plugins": [{"type": "stranger"}]});
    tool.write("zz.conflist", &list.to_string());
    let program = host.dir().join("stranger");
    let versions = r#"{"cniVersion": "1.1.0", "supportedVersions": ["0.1.0"]}"#;
    fs::write(&program, format!("#!/bin/sh\necho '{versions}'\n")).unwrap();
    let findings = tool.doctor();
    findings.expect("warning", "plugin", &["stranger is not in"]);
    obey((&host, &tool, &pod), &findings, "plugin");
    assert_eq!(tool.doctor().status, 0);
    let program = host.dir().join("plugins/stranger");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    let findings = tool.doctor();
    findings.expect("warning", "plugin", &["not executable"]);
    obey((&host, &tool, &pod), &findings, "plugin");
    assert_eq!(tool.doctor().status, 0);
    host.script("stranger", "exit 3");
    let findings = tool.doctor();
    findings.expect("warning", "plugin", &["does not answer VERSION"]);
    // It shows the failure again.
    for command in findings.fixes("plugin") {
        tool.obey(&format!("{command} || true"));
    }
}

#[test]
fn file_systems_are_mounted_again() {
    let host = Host::new();
    let (tool, pod) = with_a_pod(&host);
    host.sh("mount -t tmpfs -o noexec tmpfs /run/test/plugins");
    let versions = r#"{"cniVersion": "1.1.0", "supportedVersions": ["0.1.0"]}"#;
    host.script("stranger", &format!("echo '{versions}'"));
    let list = json!({"name": "zz", "plugins": [{"type": "stranger"}]});
    tool.write("zz.conflist", &list.to_string());
    let findings = tool.doctor();
    findings.expect("warning", "plugin", &["without exec"]);
    obey((&host, &tool, &pod), &findings, "plugin");
    assert_eq!(tool.doctor().status, 0);
    host.read_only(host.lease_dir());
    let findings = tool.doctor();
    findings.expect("problem", "disk", &["is read-only"]);
    obey((&host, &tool, &pod), &findings, "disk");
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
}

/// The managers' own programs are scripts here.
#[test]
fn managers_leave_a_bridge_alone() {
    let host = Host::new();
    copy_etc(&host);
    let (tool, pod) = with_a_pod(&host);
    let bridge = host
        .bridge_v4()
        .with("bridge", "pods0")
        .with("ipMasq", true);
    tool.configure("zz", &[bridge.config().clone()]);
    host.ip("link add pods0 type bridge");
    for manager in ["networkctl", "nmcli"] {
        host.script(manager, "echo \"$0 $@\" >>/run/test/calls");
    }
    host.sh("mkdir -p /etc/systemd/network /etc/NetworkManager/conf.d");
    host.sh("mkdir -p /run/systemd/netif/links /run/NetworkManager/devices");
    for link in ["cni1", "pods0"] {
        let index = host.link(link)["ifindex"].to_string();
        let networkd = format!("/run/systemd/netif/links/{index}");
        fs::write(networkd, "ADMIN_STATE=configured\n").unwrap();
        let manager = format!("/run/NetworkManager/devices/{index}");
        fs::write(manager, "[device]\nmanaged=true\n").unwrap();
    }
    let findings = tool.doctor();
    findings.expect("warning", "manager", &["cni1, pods0", "networkctl reload"]);
    obey((&host, &tool, &pod), &findings, "manager");
    for (file, line) in [
        ("systemd/network/05-cni-pods0.network", "Name=pods0"),
        ("systemd/network/05-cni.network", "Unmanaged=yes"),
        ("NetworkManager/conf.d/05-cni-pods0.conf", "managed=0"),
        ("NetworkManager/conf.d/05-cni.conf", "managed=0"),
    ] {
        let written = fs::read_to_string(Path::new("/etc").join(file)).unwrap();
        assert!(written.contains(line), "{file}: {written}");
    }
    let calls = fs::read_to_string("/run/test/calls").unwrap();
    assert_eq!(calls.matches("reload").count(), 2, "{calls}");
}
