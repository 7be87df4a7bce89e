//! cnitool doctor: kernels, links, ports and disks that do not suit the networks.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use serde_json::json;
use tests::{Findings, Host, Place as _, Sandbox, Tool, eventually};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

/// Attaches a pod to the network `pods`; doctor must report nothing.
fn healthy<'h>(host: &'h Host, a: &Sandbox) -> Tool<'h> {
    let tool = host.pods();
    tool.add("pods", a, &PORTS);
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    tool
}

/// Runs the fixes of this subject's findings; doctor must report nothing afterwards.
#[track_caller]
fn fix(tool: &Tool<'_>, findings: &Findings, subject: &str) {
    let commands = findings.fixes(subject);
    assert!(!commands.is_empty(), "{findings:#?}");
    for command in commands {
        tool.obey(&command);
    }
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

#[test]
fn missing_kernel_features_are_reported_if_configured() {
    let host = Host::new();
    let tool = host.tool();
    let filters = Command::new("ip")
        .args([
            "link",
            "add",
            "try",
            "type",
            "bridge",
            "vlan_filtering",
            "1",
        ])
        .output();
    let filters = filters.unwrap().status.success();
    let bridge = host.bridge().with("isDefaultGateway", true);
    tool.configure("pods", &[bridge.config().clone()]);
    assert_eq!(tool.doctor().status, 0);
    tool.configure("pods", &[bridge.with("vlan", 100).config().clone()]);
    let told = tool.doctor().holds(
        "problem",
        "kernel",
        &["bridge with vlan or vlanTrunk needs it"],
    );
    assert_eq!(told, !filters);
}

#[test]
fn refusals_of_plugins_are_reported() {
    let host = Host::new();
    let tool = host.tool();
    for version in ["1.1.0", "0.4.0"] {
        let bridge = host.bridge().with("mtu", 9).config().clone();
        let list = json!({"cniVersion": version, "name": "pods", "plugins": [bridge]});
        tool.write("pods.conflist", &list.to_string());
        tool.doctor()
            .expect("problem", "status", &["pods.conflist", "mtu", "code 7"]);
    }
}

#[test]
fn node_that_stopped_forwarding_is_reported() {
    for (sysctl, value, level) in [
        ("net/ipv4/ip_forward", "0", "problem"),
        ("net/ipv6/conf/all/forwarding", "0", "problem"),
        ("net/ipv4/conf/cni1/forwarding", "0", "problem"),
    ] {
        let host = Host::new();
        host.hide("/etc/sysctl.d");
        let a = host.sandbox("a");
        let tool = healthy(&host, &a);
        host.set_sysctl(sysctl, value);
        let findings = tool.doctor();
        findings.expect(level, "sysctl", &[&sysctl.replace('/', "."), "is 0"]);
        fix(&tool, &findings, "sysctl");
        let kept = fs::read_to_string("/etc/sysctl.d/cni.conf").unwrap();
        assert_eq!(kept, format!("{}=1\n", sysctl.replace('/', ".")));
    }
}

#[test]
fn bridge_whose_frames_bypass_netfilter_is_reported() {
    let host = Host::new();
    if !host.show_bridged_frames(true) {
        return;
    }
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    assert!(!host.show_bridged_frames(false));
    let seen = ["netfilter sees bridged packets"];
    tool.doctor().expect("ok", "sysctl", &seen);
    for flag in ["nf_call_iptables", "nf_call_ip6tables"] {
        host.ip(&format!("link set cni1 type bridge {flag} 0"));
        let findings = tool.doctor();
        let unseen = ["netfilter does not see frames of cni1"];
        findings.expect("warning", "sysctl", &unseen);
        fix(&tool, &findings, "sysctl");
        tool.doctor().expect("ok", "sysctl", &seen);
    }
}

/// What listens on 127.0.0.1 of the node alone is guarded twice: by rules, which a flush takes away, and by policies.
#[test]
fn localhost_that_pods_reach_is_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    let key = "net.ipv4.conf.cni1.route_localnet is 1";
    let guarded = || tool.doctor().expect("ok", "localhost", &[key, "IPsec"]);
    guarded();
    host.run("nft", &["flush", "ruleset"]);
    guarded();
    host.ip("xfrm policy flush");
    let words = [key, "are missing", "CVE-2020-8558", "cnitool reload"];
    tool.doctor().expect("problem", "localhost", &words);
    tool.run(&["reload"]).ok();
    guarded();
    for side in ["src", "dst"] {
        host.ip(&format!("xfrm policy delete dir in {side} 127.0.0.0/8"));
        let from_or_to = ["from", "to"][usize::from(side == "dst")];
        let missing = format!("packets {from_or_to} 127.0.0.0/8");
        let words = ["no IPsec policy blocks", &missing, "cni1", "cnitool reload"];
        tool.doctor().expect("warning", "localhost", &words);
    }
    tool.run(&["reload"]).ok();
    assert_eq!(tool.doctor().status, 0);
    // Of a pod that no cache names.
    fs::remove_dir_all("/var/lib/cni/results").unwrap();
    host.ip("xfrm policy flush");
    host.run("nft", &["delete", "table", "inet", "cni-portmap"]);
    let findings = tool.doctor();
    findings.expect("problem", "localhost", &[key]);
    for command in findings.fixes("localhost") {
        tool.obey(&command);
    }
    guarded();
}

#[test]
fn localhost_that_another_program_opened_is_reported_and_closed() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = host.pods();
    for link in ["uplink", "all"] {
        host.set_sysctl(&format!("net/ipv4/conf/{link}/route_localnet"), "1");
        let findings = tool.doctor();
        let key = format!("net.ipv4.conf.{link}.route_localnet");
        let words = [key.as_str(), "No known pod needs it"];
        findings.expect("warning", "localhost", &words);
        host.run("iptables-nft", &["-N", "KUBE-FIREWALL"]);
        let told = tool.doctor();
        told.expect("ok", "localhost", &[&key, "kube-proxy"]);
        host.run("nft", &["flush", "ruleset"]);
        fix(&tool, &findings, "localhost");
    }
}

#[test]
fn bridge_that_is_missing_or_down_or_lacks_its_address_is_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    host.ip("address delete 10.1.0.1/24 dev cni1");
    assert!(!a.pings("10.1.0.1"));
    let findings = tool.doctor();
    findings.expect(
        "problem",
        "bridge",
        &["cni1 lacks the gateway's address 10.1.0.1/24"],
    );
    fix(&tool, &findings, "bridge");
    assert!(eventually(|| a.pings("10.1.0.1")));
    host.ip("link set cni1 down");
    let findings = tool.doctor();
    findings.expect("problem", "bridge", &["cni1 is down"]);
    host.ip("link delete cni1");
    let words = ["cni1 does not exist", "cni:pods/", "cnitool ps"];
    tool.doctor().expect("problem", "bridge", &words);
}

#[test]
fn different_mtus_are_reported() {
    let host = Host::new();
    let _outside = host.outside();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    host.ip("link set cni1 mtu 1400");
    tool.doctor()
        .expect("warning", "mtu", &["cni1 has MTU 1400", "veth", "1500"]);
    host.ip("link set cni1 mtu 1500");
    assert_eq!(tool.doctor().status, 0);
    host.ip("route add default via 192.0.2.2");
    host.ip("link set uplink mtu 1450");
    let findings = tool.doctor();
    findings.expect("warning", "mtu", &["cni1 has MTU 1500", "uplink has 1450"]);
    for command in findings.fixes("mtu") {
        tool.obey(&command);
    }
    // Pods keep their MTU, and the bridge passes frames of that size to the host.
    assert_eq!(a.link("eth0")["mtu"], 1500);
    a.run("ping", &["-c", "1", "-W", "2", "-s", "1472", "10.1.0.1"]);
}

#[test]
fn full_bridge_is_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    let pairs = (0..1022).map(|it| format!("link add a{it} master cni1 type veth peer b{it}\n"));
    let batch = host.dir().join("batch");
    fs::write(&batch, pairs.collect::<String>()).unwrap();
    host.run("ip", &["-batch", batch.to_str().unwrap()]);
    let findings = tool.doctor();
    findings.expect("problem", "bridge", &["cni1 has 1023 of 1023 ports"]);
    // The worst finding is the last one.
    tool.obey(findings.fixes("bridge").last().unwrap());
    host.ip("link delete a0");
    tool.doctor()
        .expect("warning", "bridge", &["cni1 has 1022 of 1023 ports"]);
}

/// The test uses a bridge, since not every kernel supports kube-proxy's kind of link.
#[test]
fn services_that_hostports_could_take_are_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    host.ip("link add kube-ipvs0 type bridge");
    host.ip("address add 10.96.0.1/32 dev kube-ipvs0");
    let findings = tool.doctor();
    let words = [
        "its mode is IPVS",
        "conditionsV4",
        "ip daddr != 10.96.0.0/12",
    ];
    findings.expect("problem", "kube-proxy", &words);
    fix(&tool, &findings, "kube-proxy");
    tool.doctor()
        .expect("ok", "kube-proxy", &["its mode is IPVS", "10.96.0.1"]);
}

#[test]
fn managers_of_our_links_are_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    let index = host.link("cni1")["ifindex"].to_string();
    let networkd = "/run/systemd/netif/links";
    fs::create_dir_all(networkd).unwrap();
    let state = |admin: &str| format!("ADMIN_STATE={admin}\nNETWORK_FILE=/etc/x.network\n");
    let networkd = format!("{networkd}/{index}");
    fs::write(&networkd, state("configured")).unwrap();
    let words = [
        "systemd-networkd manages cni1, by /etc/x.network",
        "cnitool install --drop-ins",
    ];
    tool.doctor().expect("warning", "manager", &words);
    fs::write(&networkd, state("unmanaged")).unwrap();
    assert_eq!(tool.doctor().status, 0);
    fs::create_dir_all("/run/NetworkManager/devices").unwrap();
    let file = format!("/run/NetworkManager/devices/{index}");
    fs::write(file, "[device]\nmanaged=true\n").unwrap();
    let words = ["NetworkManager manages cni1", "cnitool install --drop-ins"];
    tool.doctor().expect("warning", "manager", &words);
}

#[test]
fn port_that_a_process_listens_on_is_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
    let words = [
        "tcp port 8080 is forwarded to cni:pods/",
        "listens on it",
        "sport = :8080",
    ];
    tool.doctor().expect("warning", "hostport", &words);
    drop(listener);
    assert_eq!(tool.doctor().status, 0);
    let _on_v6 = TcpListener::bind("[::1]:8080").unwrap();
    assert_eq!(tool.doctor().status, 0);
    let _on_v4 = TcpListener::bind("127.0.0.1:8080").unwrap();
    let words = ["listens on it at 127.0.0.1", "the node itself"];
    tool.doctor().expect("warning", "hostport", &words);
}

#[test]
fn port_of_one_address_and_of_all_is_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    let element = "192.0.2.1 . tcp . 8080 comment \"cni:pods/b/eth0\" : 10.1.0.9 . 80";
    host.run(
        "nft",
        &[&format!(
            "add element inet cni-portmap address-ports4 {{ {element} }}"
        )],
    );
    let words = ["tcp port 8080 is forwarded to cni:pods/", "cni:pods/b/eth0"];
    tool.doctor().expect("problem", "hostport", &words);
}

#[test]
fn full_disk_is_reported() {
    let host = Host::new();
    let tool = host.pods();
    host.tmpfs(host.lease_dir(), "size=64k,nr_inodes=100");
    tool.doctor().expect("ok", "disk", &["64 KiB"]);
    fs::write(host.lease_dir().join("large"), vec![0; 64 << 10]).unwrap();
    tool.doctor()
        .expect("problem", "disk", &["has 0 KiB", "No lease can be written"]);
    host.tmpfs(host.lease_dir(), "nr_inodes=1");
    tool.doctor().expect("problem", "disk", &["0 files left"]);
    host.tmpfs(host.lease_dir(), "");
    host.read_only(host.lease_dir());
    tool.doctor().expect("problem", "disk", &["is read-only"]);
}

#[test]
fn unreadable_parts_are_reported_and_the_rest_is_checked() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = healthy(&host, &a);
    let setpriv = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"].map(str::to_owned);
    let outcome = tool.run(&["doctor"]).under(&setpriv).run();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    for words in ["not read: ", "CAP_NET_ADMIN", "network pods, version 1.1.0"] {
        assert!(outcome.stdout.contains(words), "{words}: {outcome:#?}");
    }
    assert!(!outcome.stdout.contains("firewall"), "{outcome:#?}");
}
