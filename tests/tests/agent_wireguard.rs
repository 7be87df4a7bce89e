//! cni-agent joins nodes by WireGuard. Connections between pods show it, and a capture on the link
//! between the nodes shows that no packet of a pod is there unencrypted.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::Signal;
use tests::api_server::Answers;
use tests::cluster::{Cluster, LAN, Node};
use tests::traffic::{arrives_from, client_seen, tcp};
use tests::wireguard::{ANNOTATION, Scene, addresses, announcement, expect_routes, key_file, soon};
use tests::{Agent, Host, Place as _};

#[test]
fn pods_and_nodes_reach_pods_and_every_packet_is_encrypted() {
    let host = Host::new();
    let scene = Scene::new(&host, 3);
    for (client, server) in [(1, 2), (2, 3), (3, 1)] {
        let pod = |number: u8| &scene.pods[usize::from(number) - 1];
        for (own, other) in addresses(client).iter().zip(&addresses(server)) {
            let seen = client_seen(pod(client), pod(server), other);
            assert_eq!(seen, *own);
        }
    }
    let place = scene.first().place();
    let seen = client_seen(place, &scene.pods[1], "10.244.2.2");
    assert_eq!(seen, "10.244.1.0");
    let seen = client_seen(place, &scene.pods[1], "fd00:10:244:2::2");
    assert!(seen.starts_with("fd00:10:244:1::"), "{seen}");
    assert_eq!(scene.pods[0].link("eth0")["mtu"], 1440);
    scene.pods[0].sh("ping -n -c 1 -W 5 -M do -s 1412 10.244.2.2");
    assert!(scene.is_encrypted());
    let secret = fs::read_to_string(key_file(scene.first())).unwrap();
    let mode = fs::metadata(key_file(scene.first())).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let object = scene.cluster.api.object("node-1").to_string();
    assert!(!object.contains(secret.trim()) && !scene.first().log().contains(secret.trim()));
}

const DAMAGES: [&str; 4] = [
    "ip link del cni-wg",
    "ip link set cni-wg down",
    "ip address flush dev cni-wg",
    "ip link del cni-wg; ip link add cni-wg type wireguard && ip link set cni-wg up || true",
];

#[test]
fn device_that_another_program_damages_is_repaired_and_nothing_leaks() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    assert!(soon(|| scene.reaches(2)));
    for damage in DAMAGES {
        scene.first().place().sh(damage);
        let is_repaired = soon(|| scene.reaches(2));
        assert!(is_repaired, "{damage}: {}", scene.first().log());
        let from_node = tcp(scene.first().place(), &scene.pods[1], "10.244.2.2");
        assert!(from_node.is_some(), "{damage}");
        scene.is_encrypted();
    }
    // Without an agent, nothing repairs the device, and the packets still do not leave.
    scene.nodes[0].1.signal(Signal::SIGKILL);
    scene.first().place().ip("link del cni-wg");
    assert!(!scene.reaches(2));
    scene.is_encrypted();
}

/// Another program's routes may lead packets elsewhere, and anyone may send packets with the address of
/// another node's pod.
#[test]
fn packets_of_pods_leave_and_arrive_through_the_device_alone() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let (first, pod) = (scene.first(), &scene.pods[0]);
    assert!(soon(|| scene.reaches(2)));
    for line in ROUTES_OF_ANOTHER_PROGRAM {
        first.place().ip(line);
    }
    assert!(!scene.reaches(2));
    scene.is_encrypted();
    let stranger = scene.cluster.machine(3, LAN);
    let stranger = stranger.place();
    stranger.ip("route add 10.244.1.0/24 via 192.0.2.1");
    stranger.ip("-6 route add fd00:10:244:1::/64 via 2001:db8::1");
    let [v4, v6] = ["10.244.2.9", "fd00:10:244:2::9"];
    let arrivals = || {
        [
            arrives_from(stranger, v4, (pod, "10.244.1.2")),
            arrives_from(stranger, v6, (pod, "fd00:10:244:1::2")),
            arrives_from(stranger, v4, (first.place(), "192.0.2.1")),
            arrives_from(stranger, v6, (first.place(), "2001:db8::1")),
            arrives_from(pod, "10.244.2.10", (first.place(), "192.0.2.1")),
            arrives_from(pod, "fd00:10:244:2::10", (first.place(), "2001:db8::1")),
        ]
    };
    assert_eq!(arrivals(), [false; 6]);
    // Without the rules, each of them arrives.
    scene.nodes[0].1.signal(Signal::SIGKILL);
    first.place().sh("nft delete table inet cni-cluster");
    assert!(soon(|| arrivals() == [true; 6]));
    assert!(!scene.reaches(2));
    assert!(
        scene
            .packets
            .seen()
            .iter()
            .any(|it| it.destination == IpAddr::from([10, 244, 2, 2]))
    );
}

const ROUTES_OF_ANOTHER_PROGRAM: [&str; 4] = [
    "rule add to 10.244.2.0/24 lookup 99",
    "route add 10.244.2.0/24 via 192.0.2.2 table 99",
    "-6 rule add to fd00:10:244:2::/64 lookup 99",
    "-6 route add fd00:10:244:2::/64 via 2001:db8::2 table 99",
];

/// A node behind NAT, or with several addresses, does not send from its `InternalIP`.
#[test]
fn node_that_sends_from_another_address_is_followed() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let second = scene.nodes[1].0.place();
    second.ip("address add 192.0.2.77/24 dev eth0");
    second.sh(NAT);
    assert!(soon(|| scene.pods[1].pings("10.244.1.2")));
    let before = changes(scene.first());
    scene.cluster.object(9, LAN);
    assert!(soon(|| changes(scene.first()) != before));
    assert_eq!(changes(scene.first()), before + 2, "two refusals");
    assert!(scene.reaches(2));
    let sent = scene.packets.seen();
    assert!(
        sent.iter()
            .any(|it| it.destination == IpAddr::from([192, 0, 2, 77]))
    );
}

const NAT: &str = "nft 'add table ip other; add chain ip other out { type filter hook postrouting priority 300; }; \
                   add rule ip other out udp sport 51820 ip saddr set 192.0.2.77; \
                   add chain ip other in { type filter hook prerouting priority -400; }; \
                   add rule ip other in ip daddr 192.0.2.77 ip daddr set 192.0.2.2'";

/// Returns how much the node's agent has changed.
fn changes(node: &Node<'_>) -> u64 {
    let metrics = node.http("/metrics");
    let mut lines = metrics.lines();
    let count = lines.find_map(|it| it.strip_prefix("cni_agent_cluster_route_changes_total "));
    count.unwrap().parse().unwrap()
}

#[test]
fn ipv4_works_without_ipv6() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    cluster.node(2, LAN);
    cluster
        .api
        .annotate("node-2", ANNOTATION, Some(FOREIGN_KEY));
    node.place()
        .set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    let agent = node.agent(&cluster.sections(&node, "wireguard"));
    assert!(soon(|| node.conflist().exists()), "{}", node.log());
    agent.says("the kernel refuses the address fd00:10:244:1::");
    let routes = node.place().ip("route show dev cni-wg");
    assert!(routes.contains("10.244.2.0/24 proto 201"), "{routes}");
}

/// After a boot, the API server may not answer for long.
#[test]
fn refusals_precede_the_device_without_the_api_server_too() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let first = scene.first();
    scene.nodes[0].1.signal(Signal::SIGKILL);
    first.place().sh(
        "ip link del cni-wg; ip route flush proto 201; ip -6 route flush proto 201; nft delete table inet cni-cluster",
    );
    scene.cluster.api.answers(Answers::Away);
    let events = first.dir().join("events");
    first.place().sh(&format!(
        "timeout 120 ip monitor link route >{} 2>&1 </dev/null &",
        events.display()
    ));
    let _agent = first.agent(&scene.cluster.sections(first, "wireguard"));
    expect_routes(first, &[2]);
    let events = fs::read_to_string(events).unwrap();
    let device = events.find("cni-wg").unwrap();
    for refusal in [
        "unreachable 10.244.2.0/24",
        "unreachable fd00:10:244:2::/64",
    ] {
        assert!(events.find(refusal).unwrap() < device, "{events}");
    }
    assert!(soon(|| scene.reaches(2)));
    assert!(scene.is_encrypted());
}

#[test]
fn port_of_another_program_is_reported_and_cleanup_removes_everything() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let before = state(&node);
    cluster.node(2, LAN);
    cluster
        .api
        .annotate("node-2", ANNOTATION, Some(FOREIGN_KEY));
    let sections = cluster.sections(&node, "wireguard");
    let other = node
        .place()
        .enter(|| UdpSocket::bind("0.0.0.0:51820").unwrap());
    let agent = node.agent(&sections);
    agent.says("another program uses UDP port 51820");
    node.health_has("cluster: conflist: no WireGuard device cni-wg");
    assert!(!node.conflist().exists());
    assert_eq!(announcement(&cluster, "node-1"), None);
    drop(other);
    expect_routes(&node, &[2]);
    assert!(soon(|| node.conflist().exists()));
    assert!(soon(|| announcement(&cluster, "node-1").is_some()));
    drop(agent);
    // The mode is another one now.
    let sections = cluster.sections(&node, "vxlan");
    let run = Agent::run_in(&host, node.dir(), &sections).argument("--cleanup");
    assert!(node.place().enter(|| run.run()).status.success());
    assert!(!key_file(&node).exists() && !node.conflist().exists());
    // Pods may still need it.
    node.place().sh("nft delete table inet cni-masquerade");
    assert_eq!(state(&node), before);
}

/// What node-2 announces with the first private key of RFC 8032, section 7.1.
const FOREIGN_KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURqDV881VbMc0sj4TBS45I+X4QIN\
                           ZQ6j6mKfmBmcwl6VG6Ul7xTSzKD2MbF/LkL1t+C5TqWuRu5Tcyj8toc+EQ4D";

/// Returns the links, routes and rules of a node.
fn state(node: &Node<'_>) -> String {
    let lists = ["-br link", "-4 route", "-6 route"].map(|it| node.place().ip(it));
    let rules = node.place().run("nft", &["--stateless", "list", "ruleset"]);
    lists.join("\n") + &rules
}
