//! cnitool on a node with `ptp`: doctor, ps, gc and reload.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tests::traffic::{tcp, tcp_by_port};
use tests::{Host, Place as _, Sandbox, Tool, at_once, eventually};

const PORTS: [&str; 1] = ["8080:80"];

/// Configures the network `pods` of ptp and portmap; the node forwards to another host.
fn pods(host: &Host) -> (Tool<'_>, Sandbox) {
    let outside = host.outside();
    host.ip("route add default via 192.0.2.2");
    let tool = host.tool();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let ptp = host.ptp().with("ipMasq", true);
    tool.configure("pods", &[ptp.config().clone(), portmap]);
    (tool, outside)
}

#[test]
fn healthy_node_has_status_0() {
    let host = Host::new();
    let (tool, _outside) = pods(&host);
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    findings.expect(
        "ok",
        "sysctl",
        &["net.ipv4.ip_forward is 0", "of pods sets it"],
    );
    for (name, ports) in [("a", &PORTS[..]), ("b", &[]), ("c", &[])] {
        tool.add("pods", &host.sandbox(name), ports);
    }
    let before = host.snapshot();
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    findings.expect("ok", "pod", &["3 attached"]);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn what_a_pod_lacks_on_the_host_is_reported_and_fixed() {
    let host = Host::new();
    let (tool, outside) = pods(&host);
    let a = host.sandbox("a");
    let result = tool.add("pods", &a, &[]);
    let end = result["interfaces"][0]["name"].as_str().unwrap();
    let reaches = || tcp(&a, &outside, "192.0.2.2").is_some();
    for (change, word) in [
        ("route delete 10.1.0.2/32", "route to 10.1.0.2"),
        ("route delete fd00:1::2/128", "route to fd00:1::2"),
        // The kernel deletes IPv4 routes with the last IPv4 address of a link.
        ("address delete 10.1.0.1/32", "route to 10.1.0.2"),
        ("address delete fd00:1::1/128", "address fd00:1::1"),
    ] {
        host.ip(&format!("{change} dev {end}"));
        tool.doctor().expect("problem", "pod", &[end, word]);
        for command in tool.doctor().fixes("pod") {
            tool.obey(&command);
        }
        if tool.doctor().status != 0 {
            tool.fix("pod");
        }
        assert!(reaches() && host.pings("fd00:1::2"));
        let check = tool.on("check", "pods", &a).run();
        assert!(check.status.success(), "{check:?}");
    }
    host.set_sysctl("net/ipv4/ip_forward", "0");
    assert!(!reaches());
    let words = ["net.ipv4.ip_forward is 0", "Pods of pods"];
    tool.doctor().expect("problem", "sysctl", &words);
    host.ip(&format!("link set {end} down"));
    tool.doctor().expect("problem", "pod", &[end, "is down"]);
}

#[test]
fn ps_lists_a_routed_pod_like_any_other() {
    let host = Host::new();
    let (tool, _outside) = pods(&host);
    let result = tool.add("pods", &host.sandbox("a"), &PORTS);
    let [row] = <[_; 1]>::try_from(tool.ps()).unwrap();
    assert_eq!(row["addresses"], json!(["10.1.0.2", "fd00:1::2"]));
    assert_eq!(row["hostLink"], result["interfaces"][0]["name"]);
    assert_eq!(row["knownBy"], json!(["cache", "link", "element", "lease"]));
    assert_eq!(row["ports"], json!(["8080:80/tcp"]));
}

#[test]
fn gc_removes_what_is_left_of_a_pod_and_keeps_those_of_both_implementations() {
    let host = Host::new();
    let (tool, _outside) = pods(&host);
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    for pod in [&a, &b] {
        tool.add("pods", pod, &[]);
    }
    host.ptp().by_reference().add(&c);
    b.remove();
    assert!(eventually(|| host.links().len() == 4));
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    for file in fs::read_dir(host.lease_dir().join("pods")).unwrap() {
        let file = File::open(file.unwrap().path()).unwrap();
        file.set_modified(hour_ago).unwrap();
    }
    let outcome = tool.run(&["gc", "pods"]).run();
    assert!(outcome.status.success(), "{outcome:#?}");
    let leases: Vec<_> = host.leases("pods").into_keys().collect();
    assert_eq!(leases, ["10.1.0.2", "10.1.0.4", "fd00:1::2", "fd00:1::4"]);
    assert!(host.pings("10.1.0.2") && host.pings("10.1.0.4"));
}

#[test]
fn reload_restores_masquerading_and_ports() {
    let host = Host::new();
    let (tool, outside) = pods(&host);
    let a = host.sandbox("a");
    tool.add("pods", &a, &PORTS);
    host.run("nft", &["flush", "ruleset"]);
    assert_eq!(tcp(&a, &outside, "192.0.2.2"), None);
    let words = ["cni-masquerade", "cnitool reload"];
    tool.doctor().expect("problem", "firewall", &words);
    let outcome = tool.run(&["reload"]).run();
    assert!(outcome.status.success(), "{outcome:#?}");
    assert_eq!(tcp(&a, &outside, "192.0.2.2"), Some([192, 0, 2, 1].into()));
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

/// Checks that doctor names what drops the packets, and that its fix opens the node.
#[track_caller]
fn closed_and_opened(rules: &str, place: &str) {
    let host = Host::new();
    let (tool, outside) = pods(&host);
    host.sh(rules);
    // The first pod does not exist yet.
    let elsewhere = "from pods of network pods to other hosts (TCP)";
    tool.doctor()
        .expect("problem", "firewall", &[elsewhere, place]);
    let a = host.sandbox("a");
    tool.add("pods", &a, &PORTS);
    let reaches = || {
        let ways: [&(dyn Fn() -> bool + Sync); 2] =
            [&|| tcp(&a, &outside, "192.0.2.2").is_some(), &|| {
                tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some()
            }];
        at_once(&ways, |way| way())
    };
    assert_eq!(reaches(), [false; 2]);
    let findings = tool.doctor();
    let words = [elsewhere, place, "hostPort 8080"];
    findings.expect("problem", "firewall", &words);
    for command in findings.fixes("firewall") {
        tool.obey(&command);
    }
    assert_eq!(reaches(), [true; 2]);
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    let words = ["new packets of pods of network pods pass"];
    findings.expect("ok", "firewall", &words);
}

#[test]
fn chains_that_drop_packets_of_routed_pods_are_named_and_opened() {
    let chain = "{ type filter hook forward priority 0 ; policy drop ; }";
    let guard = format!("nft add table inet guard && nft 'add chain inet guard gate {chain}'");
    let all = [
        (
            "iptables-nft -P FORWARD DROP",
            "table ip filter, chain FORWARD, by its policy",
        ),
        (
            "iptables-legacy -P FORWARD DROP",
            "iptables-legacy -t filter: :FORWARD DROP",
        ),
        (
            guard.as_str(),
            "table inet guard, chain gate, by its policy",
        ),
    ];
    at_once(&all, |(rules, place)| closed_and_opened(rules, place));
}

#[test]
fn permission_of_the_plugin_firewall_counts_for_routed_pods() {
    let host = Host::new();
    let (tool, outside) = pods(&host);
    let pods = ["a", "b"].map(|it| host.sandbox(it));
    let ptp = host.ptp().with("ipMasq", true);
    host.sh("iptables-nft -A FORWARD -j REJECT");
    tool.add("pods", &pods[0], &[]);
    let words = ["The plugin `firewall` in the network's list lets them pass"];
    tool.doctor().expect("problem", "firewall", &words);
    tool.configure("pods", &[ptp.config().clone(), json!({"type": "firewall"})]);
    tool.add("pods", &pods[1], &[]);
    let reaches = |pod| tcp(pod, &outside, "192.0.2.2").is_some();
    assert_eq!([&pods[0], &pods[1]].map(reaches), [false, true]);
    let words = ["new packets of pods of network pods pass"];
    tool.doctor().expect("ok", "firewall", &words);
    // An administrator's rule precedes the permission.
    host.sh("iptables-nft -A CNI-ADMIN -j DROP");
    assert!(!reaches(&pods[1]));
    let words = ["table ip filter, chain CNI-ADMIN, by the rule with handle"];
    let findings = tool.doctor();
    findings.expect("problem", "firewall", &words);
    assert!(!findings.holds("problem", "firewall", &["lets them pass"]));
}

#[test]
fn addresses_of_static_are_tried_before_the_first_pod() {
    for plugin in ["ptp", "bridge"] {
        let host = Host::new();
        let tool = host.tool();
        let ipam = json!({
            "type": "static", "addresses": [{"address": "10.7.0.5/24"}, {"address": "fd00:7::5/64"}],
        });
        let plugins = [json!({"type": plugin, "isGateway": true, "ipam": ipam})];
        tool.configure("pods", &plugins);
        tool.doctor().expect("ok", "firewall", &["pass"]);
        host.sh("ip6tables-nft -P FORWARD DROP");
        let words = ["new IPv6 packets", "table ip6 filter, chain FORWARD"];
        tool.doctor().expect("problem", "firewall", &words);
    }
}

#[test]
fn elements_of_a_routed_pod_are_removed_by_ptp() {
    let host = Host::new();
    let tool = host.tool();
    let (addresses, routes) = (json!([{"address": "10.7.0.5/24"}]), json!([]));
    let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
    let ptp = json!({"type": "ptp", "ipMasq": true, "ipam": ipam});
    tool.configure("pods", &[ptp, json!({"type": "firewall"})]);
    let a = host.sandbox("a");
    tool.add("pods", &a, &[]);
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    a.remove();
    let words = ["cni-firewall, cni-masquerade", "\"type\":\"ptp\""];
    let is_reported = || tool.doctor().holds("warning", "element", &words);
    assert!(eventually(is_reported), "{:#?}", tool.doctor());
    tool.fix("element");
    assert!(!host.run("nft", &["list ruleset"]).contains("cni:"));
}

/// The elements of the pod, and its cached result, show that this is the host's network namespace.
#[test]
fn gc_removes_elements_of_the_last_pod() {
    let host = Host::new();
    let tool = host.tool();
    let ipam = json!({"type": "static", "addresses": [{"address": "10.7.0.5/24"}]});
    tool.configure(
        "pods",
        &[json!({"type": "ptp", "ipMasq": true, "ipam": ipam})],
    );
    let a = host.sandbox("a");
    tool.add("pods", &a, &[]);
    host.end(&a);
    assert!(host.run("nft", &["list ruleset"]).contains("cni:"));
    let gc = tool.run(&["gc", "pods"]);
    let elsewhere = gc.under(&["unshare", "--net"].map(str::to_owned));
    elsewhere.expect_failure(&["this network namespace has no link of the network"]);
    tool.run(&["gc", "pods"]).ok();
    assert!(!host.run("nft", &["list ruleset"]).contains("cni:"));
}

#[test]
fn networks_that_cannot_be_tried_are_named() {
    let host = Host::new();
    let tool = host.tool();
    let ptp = json!({"type": "ptp", "ipam": {"type": "static"}});
    tool.configure("pods", &[ptp]);
    let words = ["no packet was tried of networks: pods"];
    tool.doctor().expect("ok", "firewall", &words);
}
