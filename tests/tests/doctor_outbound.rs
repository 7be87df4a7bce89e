//! cnitool doctor: networks whose pods do not reach other hosts, and healthy ones.

use std::fs;

use serde_json::json;
use tests::dhcp::Daemon;
use tests::{Example, Findings, Host, Network, Place as _, Tool, eventually};

/// Configures the network `pods` with this plugin, and returns doctor's findings.
fn judged(tool: &Tool<'_>, plugin: &Network<'_>) -> Findings {
    tool.configure("pods", &[plugin.config().clone()]);
    tool.doctor()
}

#[track_caller]
fn expect_ok(tool: &Tool<'_>, plugin: &Network<'_>) {
    judged(tool, plugin).expect_ok("outbound");
}

/// Connects the host to another one, which is its router.
fn with_a_router(host: &Host) {
    host.outside_of_both_families();
    host.ip("route add default via 192.0.2.2");
    host.ip("-6 route add default via 2001:db8::2");
}

/// Runs the commands for a network whose pods reach nothing: afterwards new pods must reach the
/// host beyond their network, and doctor must be content.
#[track_caller]
fn fix(host: &Host, tool: &Tool<'_>) {
    let pod = host.sandbox("before");
    tool.add("pods", &pod, &[]);
    let before = pod.pings("10.1.0.1");
    for command in tool.doctor().fixes("outbound") {
        tool.obey(&command);
        assert_eq!(pod.pings("10.1.0.1"), before, "{command}");
    }
    tool.doctor().expect_ok("outbound");
    let pod = host.sandbox("after");
    tool.add("pods", &pod, &[]);
    assert!(pod.pings("192.0.2.1"));
}

#[test]
fn default_route_by_a_gateway_that_is_not_there_is_reported() {
    let host = Host::new();
    with_a_router(&host);
    let tool = host.tool();
    let plugin = host.bridge_v4().without("isGateway").with("ipMasq", true);
    let plugin = plugin.with("ipam.routes", json!([{"dst": "0.0.0.0/0"}]));
    let words = [
        "pods.conflist: pods of pods get a default route",
        "isGateway",
    ];
    judged(&tool, &plugin).expect("warning", "outbound", &words);

    // The router behind the bridge's uplink is the gateway.
    host.ip("link add cni0 type bridge");
    host.ip("link add port type veth peer name far");
    host.ip("link set port master cni0");
    tool.doctor().expect_ok("outbound");
    host.ip("link delete port");
    fix(&host, &tool);
}

#[test]
fn gateway_without_a_route_by_it_is_reported() {
    let host = Host::new();
    with_a_router(&host);
    let tool = host.tool();
    let bridge = host.bridge_v4().with("ipMasq", true);
    let ipam = bridge.config()["ipam"].clone();
    let words = [
        "pods of pods get no default route",
        "isDefaultGateway to false",
    ];
    judged(&tool, &bridge).expect("warning", "outbound", &words);
    fix(&host, &tool);
    let ptp = host.ptp().with("ipMasq", true).with("ipam", ipam);
    let words = ["pods of pods get no default route", r#"Write "routes""#];
    judged(&tool, &ptp).expect("warning", "outbound", &words);
}

#[test]
fn private_addresses_that_nothing_masquerades_are_reported() {
    let host = Host::new();
    let tool = host.tool();
    let bridge = || host.bridge_v4().with("isDefaultGateway", true);
    // Without a default route, the host itself reaches no other networks.
    expect_ok(&tool, &bridge());
    with_a_router(&host);
    let words = ["own addresses, such as 10.1.0.", "ipMasq to false"];
    judged(&tool, &bridge()).expect("warning", "outbound", &words);

    let public = host.bridge_v4().with("isDefaultGateway", true);
    let public = public.with("ipam.ranges", json!([[{"subnet": "198.18.0.0/24"}]]));
    for healthy in [bridge().with("ipMasq", false), public] {
        expect_ok(&tool, &healthy);
    }
    let stranger = json!({"type": "stranger"});
    tool.configure("pods", &[bridge().config().clone(), stranger]);
    tool.doctor().expect_ok("outbound");
    tool.configure("pods", &[bridge().config().clone()]);
    // As rules of ip-masq-agent, kindnet, flannel or an administrator.
    let rule = "-t nat -I POSTROUTING -s 10.1.0.0/24 -j MASQUERADE";
    let words: Vec<_> = rule.split(' ').collect();
    host.run("iptables-nft", &words);
    tool.doctor().expect_ok("outbound");
    host.run("iptables-nft", &["-t", "nat", "-F", "POSTROUTING"]);
    // Other programs of a cluster add routes to the pods.
    host.run("iptables-nft", &["-t", "nat", "-N", "KUBE-SERVICES"]);
    tool.doctor().expect_ok("outbound");
    host.run("iptables-nft", &["-t", "nat", "-X", "KUBE-SERVICES"]);
    fix(&host, &tool);
}

/// doctor has nothing to say about the plugins of an example on a host with a router.
#[test]
fn examples_are_healthy() {
    let host = Host::new();
    with_a_router(&host);
    let tool = host.tool();
    let _daemon = Daemon::spawn(&host, &host.plugin("dhcp").argument("daemon"));
    assert!(eventually(|| fs::exists("/run/cni/dhcp.sock").unwrap()));
    fs::create_dir("/run/flannel").unwrap();
    fs::write("/run/flannel/subnet.env", "FLANNEL_SUBNET=10.244.1.1/24\n").unwrap();
    let mut count = 0;
    for entry in fs::read_dir(Example::directory()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if file.ends_with(".conflist") {
            Example::list(&host, &file);
        } else if file.ends_with(".conflist.template") {
            Example::template(&host, &file, &["10.244.1.0/24", "fd00:244:1::/64"]);
        } else {
            continue;
        }
        let findings = tool.doctor();
        for subject in ["conflist", "chain", "key", "capability", "outbound"] {
            findings.expect_ok(subject);
        }
        for entry in fs::read_dir(host.dir().join("net.d")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        count += 1;
    }
    assert!(count > 10, "{count}");
}
