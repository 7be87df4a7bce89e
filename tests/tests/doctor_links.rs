//! cnitool doctor: links, addresses and routes that pods need, on the node and in sandboxes.

use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use serde_json::json;
use tests::traffic::tcp;
use tests::{Host, Place as _, Sandbox, Tool};

/// Returns a pod on the network `pods` and its host link; the node forwards to another host.
fn pod<'h>(host: &'h Host, a: &Sandbox) -> (Tool<'h>, String) {
    let tool = host.pods();
    let result = tool.add("pods", a, &[]);
    host.ip("route add default via 192.0.2.2");
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    (tool, link.to_owned())
}

#[test]
fn port_that_left_its_bridge_or_is_down_is_reported() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let (tool, link) = pod(&host, &a);
    for (change, words) in [("nomaster", "is no port of cni1"), ("down", "is down")] {
        host.ip(&format!("link set {link} {change}"));
        assert_eq!(tcp(&a, &outside, "192.0.2.2"), None);
        tool.doctor().expect("problem", "pod", &[&link, words]);
        tool.fix("pod");
        assert!(tests::eventually(
            || tcp(&a, &outside, "192.0.2.2").is_some()
        ));
    }
}

/// A port that joins again would be in another VLAN, or would not be isolated.
#[test]
fn port_with_more_than_a_bridge_is_not_put_back_by_hand() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    let bridge = host.bridge().with("portIsolation", true);
    tool.configure("pods", &[bridge.config().clone()]);
    let result = tool.add("pods", &a, &[]);
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    host.ip(&format!("link set {link} nomaster"));
    let findings = tool.doctor();
    findings.expect("problem", "pod", &[link, "recreate the pod"]);
    assert!(findings.fixes("pod").is_empty(), "{findings:#?}");
}

#[test]
fn sandbox_without_link_address_or_default_route_is_reported() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let (tool, _) = pod(&host, &a);
    for (change, words) in [
        (
            "address delete 10.1.0.2/24 dev eth0",
            "lacks its address 10.1.0.2/24",
        ),
        ("route delete default", "has no default route of IPv4"),
        ("-6 route delete default", "has no default route of IPv6"),
        ("link set eth0 down", "eth0 of cni:pods/"),
    ] {
        a.ip(change);
        tool.doctor()
            .expect("problem", "pod", &[words, "nsenter --net=/run/netns/a"]);
        // Objects that disappeared with an address or a link return one by one.
        for _ in 0..4 {
            for command in tool.doctor().fixes("pod") {
                tool.obey(&command);
            }
        }
        let findings = tool.doctor();
        assert_eq!(findings.status, 0, "{change}: {findings:#?}");
        assert!(tcp(&a, &outside, "192.0.2.2").is_some(), "{change}");
    }
}

/// gVisor and Kata delete the addresses, because they have a network stack of their own. Such a pod
/// must not get its addresses a second time.
#[test]
fn sandbox_without_any_address_is_a_warning_without_a_fix() {
    let host = Host::new();
    let _outside = host.outside();
    let a = host.sandbox("a");
    let (tool, _) = pod(&host, &a);
    a.ip("address flush dev eth0 scope global");
    let findings = tool.doctor();
    let words = ["has none of its addresses", "gVisor or Kata"];
    findings.expect("warning", "pod", &words);
    assert!(findings.fixes("pod").is_empty(), "{findings:#?}");
}

#[test]
fn bridge_with_the_address_of_another_network_is_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    host.ip("link add cni1 type bridge");
    host.ip("address add 10.244.7.1/24 dev cni1");
    host.ip("link set cni1 up");
    let outcome = tool.on("add", "pods", &a).run();
    assert!(!outcome.status.success(), "{outcome:#?}");
    let words = ["cni1 has 10.244.7.1/24", "needs 10.1.0.1/24", "Every ADD"];
    tool.doctor().expect("problem", "bridge", &words);
    tool.fix("bridge");
    tool.add("pods", &a, &[]);
    // An address of another family, or one beside the gateway's, does not block ADD.
    host.ip("address add 10.244.7.1/24 dev cni1");
    host.ip("address add fd00:77::1/64 dev cni1 nodad");
    tool.add("pods", &host.sandbox("b"), &[]);
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

#[test]
fn uplink_that_is_down_or_does_not_forward_is_reported() {
    let host = Host::new();
    host.hide("/etc/sysctl.d");
    let outside = host.outside();
    let a = host.sandbox("a");
    let (tool, _) = pod(&host, &a);
    host.set_sysctl("net/ipv4/conf/uplink/forwarding", "0");
    assert_eq!(tcp(&a, &outside, "192.0.2.2"), None);
    let words = ["net.ipv4.conf.uplink.forwarding is 0"];
    tool.doctor().expect("problem", "uplink", &words);
    tool.fix("uplink");
    assert!(tcp(&a, &outside, "192.0.2.2").is_some());
    outside.ip("link set outside down");
    tool.doctor()
        .expect("problem", "uplink", &["uplink", "has no carrier"]);
    outside.ip("link set outside up");
    host.ip("link set uplink down alias by-an-operator");
    let words = ["uplink is down, and there is no default route"];
    tool.doctor().expect("problem", "uplink", &words);
    tool.fix("uplink");
}

#[test]
fn routes_that_drop_packets_of_pods_are_reported() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let (tool, _) = pod(&host, &a);
    for (route, subject) in [
        ("blackhole 10.1.0.0/28", "range"),
        ("unreachable 10.1.0.2/32", "range"),
        ("prohibit fd00:1::/80", "range"),
    ] {
        host.ip(&format!("route add {route}"));
        tool.doctor()
            .expect("problem", subject, &[route.split(' ').nth(1).unwrap()]);
        tool.fix(subject);
    }
    host.ip("route delete default");
    host.ip("route add blackhole default metric 7");
    tool.doctor()
        .expect("problem", "uplink", &["blackhole", "metric 7"]);
    tool.fix("uplink");
    // A blackhole behind a usable route, or behind the pods' own routes, drops nothing.
    host.ip("route add default via 192.0.2.2 metric 5");
    host.ip("route add blackhole default metric 7");
    host.ip("route add blackhole 10.0.0.0/8");
    host.ip("route add blackhole 10.1.0.0/24 metric 9");
    assert!(tcp(&a, &outside, "192.0.2.2").is_some());
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

/// Each node leases a part of one subnet.
#[test]
fn routes_to_pods_of_other_nodes_are_no_fault() {
    let host = Host::new();
    let _outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.tool();
    let range = json!([[{
        "subnet": "10.1.0.0/16", "rangeStart": "10.1.1.2", "rangeEnd": "10.1.1.254",
    }]]);
    let bridge = host.bridge_v4().with("ipam.ranges", range);
    let bridge = bridge.with("isDefaultGateway", true).with("ipMasq", true);
    tool.configure("pods", &[bridge.config().clone()]);
    tool.add("pods", &a, &[]);
    host.ip("route add default via 192.0.2.2");
    for (route, is_fault) in [
        ("10.1.2.0/24 via 192.0.2.2", false),
        ("blackhole 10.1.2.0/24", false),
        ("10.1.0.0/23 via 192.0.2.2", true),
        ("blackhole 10.1.1.128/25", true),
    ] {
        host.ip(&format!("route add {route}"));
        let findings = tool.doctor();
        let is_found = findings.holds("problem", "range", &[]);
        assert_eq!(is_found, is_fault, "{route}: {findings:#?}");
        host.ip(&format!("route delete {route}"));
    }
}

/// Only a rule leads to the table.
#[test]
fn routes_of_other_tables_catch_no_pods() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let (tool, _) = pod(&host, &a);
    host.ip("route add 10.1.0.0/24 via 192.0.2.2 table 100");
    host.ip("route add blackhole 10.1.0.0/25 table 100");
    assert!(tcp(&a, &outside, "192.0.2.2").is_some());
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

#[test]
fn plugin_on_a_mount_without_exec_is_reported() {
    let host = Host::new();
    let tool = host.tool();
    let plugins = host.dir().join("other");
    fs::create_dir(&plugins).unwrap();
    host.tmpfs(&plugins, "");
    host.script(
        "stranger",
        "echo '{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"1.1.0\"]}'",
    );
    fs::copy(
        host.dir().join("plugins/stranger"),
        plugins.join("stranger"),
    )
    .unwrap();
    fs::remove_file(host.dir().join("plugins/stranger")).unwrap();
    tool.configure(
        "pods",
        &[host.bridge().config().clone(), json!({"type": "stranger"})],
    );
    let path = format!("{}:{}", plugins.display(), host.search_path());
    let doctor = || tool.run(&["doctor"]).env("CNI_PATH", &path).run();
    assert_eq!(doctor().status.code(), Some(0), "{:#?}", doctor());
    remount(&plugins, MsFlags::MS_NOEXEC);
    let page = doctor().stdout;
    assert!(page.contains("without exec"), "{page}");
    assert!(!page.contains("chmod"), "{page}");
    let fix = page.lines().find(|it| it.contains("remount,exec")).unwrap();
    host.run("sh", &["-c", fix.trim()]);
    assert_eq!(doctor().status.code(), Some(0), "{:#?}", doctor());
}

fn remount(directory: &Path, flags: MsFlags) {
    let nothing = None::<&str>;
    mount(
        nothing,
        directory,
        nothing,
        MsFlags::MS_REMOUNT | flags,
        nothing,
    )
    .unwrap();
}

#[test]
fn ranges_of_the_nodes_pod_cidrs_are_judged() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = host.tool();
    let file = host.dir().join("pod-cidr");
    fs::write(&file, "10.7.0.0/30, fd00:7::/64\n").unwrap();
    let ipam = json!({"type": "host-local", "subnet": "usePodCidr", "podCidrFile": file,
        "dataDir": host.lease_dir()});
    let bridge = host.bridge().with("ipam", ipam);
    tool.configure("pods", &[bridge.config().clone()]);
    let words = [
        "no overlap, and free addresses",
        "10.7.0.0/30",
        "fd00:7::/64",
    ];
    tool.doctor().expect("ok", "range", &words);
    host.ip("address add 10.7.0.2/24 dev uplink");
    tool.doctor()
        .expect("problem", "range", &["10.7.0.2/24 on uplink"]);
    host.ip("address delete 10.7.0.2/24 dev uplink");
    tool.add("pods", &host.sandbox("a"), &[]);
    tool.doctor()
        .expect("problem", "range", &["1 of 1 addresses are held"]);
}
