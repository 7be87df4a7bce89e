//! cni-agent joins nodes by VXLAN. Connections between pods of nodes behind a router show it, and
//! hand-made packets show what stays outside.

use std::fs;
use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use tests::cluster::{Cluster, LAN, Node, WAN, tunnelled};
use tests::traffic::{Connection, client_seen};
use tests::{Agent, Host, Place, Sandbox, eventually};

/// Two nodes with a router in between, each with a pod.
struct Scene<'h> {
    cluster: Cluster<'h>,
    nodes: [(Node<'h>, Agent); 2],
    pods: [Sandbox; 2],
}

impl<'h> Scene<'h> {
    fn new(host: &'h Host) -> Self {
        let cluster = Cluster::new(host);
        let nodes = [(1, LAN), (2, WAN)]
            .map(|(number, link)| cluster.started(cluster.node(number, link), "vxlan"));
        nodes[0].0.expect_routes(&TO_SECOND);
        nodes[1].0.expect_routes(&TO_FIRST);
        let pods = [nodes[0].0.pod("a"), nodes[1].0.pod("b")];
        Self {
            cluster,
            nodes,
            pods,
        }
    }

    #[track_caller]
    fn expect_traffic(&self) {
        let [a, b] = &self.pods;
        for [own, other] in ADDRESSES {
            assert_eq!(client_seen(a, b, other), own);
            assert_eq!(client_seen(b, a, own), other);
        }
    }
}

const TO_SECOND: [&str; 2] = [
    "10.244.2.0/24 via 10.244.2.0",
    "fd00:10:244:2::/64 via fe80::",
];
const TO_FIRST: [&str; 2] = [
    "10.244.1.0/24 via 10.244.1.0",
    "fd00:10:244:1::/64 via fe80::",
];
const DIRECT_TO_SECOND: [&str; 2] = [
    "10.244.2.0/24 via 192.0.2.2",
    "fd00:10:244:2::/64 via 2001:db8::2",
];
const DIRECT_TO_FIRST: [&str; 2] = [
    "10.244.1.0/24 via 192.0.2.1",
    "fd00:10:244:1::/64 via 2001:db8::1",
];
const ADDRESSES: [[&str; 2]; 2] = [
    ["10.244.1.2", "10.244.2.2"],
    ["fd00:10:244:1::2", "fd00:10:244:2::2"],
];

#[test]
fn pods_and_nodes_reach_pods_behind_a_router_without_nat() {
    let host = Host::new();
    let scene = Scene::new(&host);
    scene.expect_traffic();
    let first = scene.nodes[0].0.place();
    assert_eq!(
        client_seen(first, &scene.pods[1], "10.244.2.2"),
        "10.244.1.0"
    );
    let seen = client_seen(first, &scene.pods[1], "fd00:10:244:2::2");
    assert!(seen.starts_with("fd00:10:244:1::"), "{seen}");
    for device in ["cni-vxlan4", "cni-vxlan6"] {
        assert_eq!(first.link_local_addresses(device), [""; 0]);
    }
    // The outer headers of IPv6 are larger, and a pod has one MTU.
    assert_eq!(scene.pods[0].link("eth0")["mtu"], 1430);
    // A packet of the largest size passes the tunnel.
    let largest = [
        "-n",
        "-c",
        "1",
        "-W",
        "2",
        "-M",
        "do",
        "-s",
        "1402",
        "10.244.2.2",
    ];
    scene.pods[0].run("ping", &largest);
}

const DAMAGES: [&str; 7] = [
    "ip link del cni-vxlan4; ip link del cni-vxlan6",
    "ip link set cni-vxlan4 down; ip link set cni-vxlan6 down",
    "ip neigh del 10.244.2.0 dev cni-vxlan4",
    "bridge fdb del $(bridge fdb show dev cni-vxlan6 | cut -d' ' -f1) dev cni-vxlan6",
    "ip address flush dev cni-vxlan4; ip address flush dev cni-vxlan6 scope global",
    "ip link set cni-vxlan4 mtu 1000",
    "ip link del cni-vxlan4; ip link add cni-vxlan4 type vxlan id 9 dstport 4789 || true",
];

#[test]
fn tunnel_that_another_program_damages_is_repaired() {
    let host = Host::new();
    let scene = Scene::new(&host);
    let first = &scene.nodes[0].0;
    let place = first.place();
    let state = || {
        let mut state = place.ip("-details address show cni-vxlan4");
        state.push_str(&place.ip("neigh show dev cni-vxlan4"));
        state.push_str(&place.run("bridge", &["fdb", "show", "dev", "cni-vxlan6"]));
        state.push_str(&place.run("nft", &["list", "table", "inet", "cni-cluster"]));
        state
    };
    scene.expect_traffic();
    for line in DAMAGES {
        place.sh(line);
        first.expect_routes(&TO_SECOND);
        assert!(
            eventually(|| scene.pods[0].pings("10.244.2.2")),
            "{line}: {}",
            state()
        );
        assert!(
            eventually(|| scene.pods[0].pings("fd00:10:244:2::2")),
            "{line}: {}",
            state()
        );
    }
    assert!(eventually(|| place.link("cni-vxlan4")["mtu"] == 1450));
    place.ip("link set eth0 mtu 1400");
    assert!(eventually(|| place.link("cni-vxlan4")["mtu"] == 1350));
    let rules = place.run("nft", &["list", "ruleset"]);
    assert!(rules.contains("table inet cni-cluster"));
    place.run("nft", &["flush", "ruleset"]);
    let is_back = || {
        place
            .run("nft", &["list", "ruleset"])
            .contains("table inet cni-cluster")
    };
    assert!(eventually(is_back));
}

/// VXLAN has no authentication, so everybody who reaches the port of a node could reach its pods.
#[test]
fn only_nodes_send_packets_into_the_tunnel() {
    let host = Host::new();
    let Scene {
        cluster,
        nodes: [(first, one), (second, two)],
        pods: [a, b],
    } = Scene::new(&host);
    let stranger = cluster.machine(3, LAN);
    let mac = second.place().mac("cni-vxlan4");
    let attack = |from: &Sandbox, source: &str| arrives(from, "198.51.100.2", (source, &b), &mac);
    // Without the agents' rules, each of these packets arrives.
    let attackers = [&a, stranger.place(), first.place()];
    let sources = ["10.244.1.9", "10.244.1.9", "203.0.113.9"];
    drop((one, two));
    for node in [&first, &second] {
        node.place()
            .sh("nft delete table inet cni-cluster; sysctl -wq net.ipv4.conf.all.rp_filter=0");
        node.place()
            .set_sysctl("net/ipv4/conf/cni-vxlan4/rp_filter", "0");
    }
    for (attacker, source) in attackers.iter().zip(sources) {
        assert!(attack(attacker, source), "{}", attacker.name());
    }
    let (first, _one) = cluster.started(first, "vxlan");
    let (second, _two) = cluster.started(second, "vxlan");
    let has_rules = |node: &Node| {
        node.place()
            .run("nft", &["list", "ruleset"])
            .contains("cni-cluster")
    };
    assert!(eventually(|| has_rules(&first) && has_rules(&second)));
    for (attacker, source) in [&a, stranger.place(), first.place()].iter().zip(sources) {
        assert!(!attack(attacker, source), "{}", attacker.name());
    }
    // Masquerading would give the packet a node's address, and the guard of the pod's own node knows
    // no further addresses of other nodes.
    second.place().ip("address add 198.51.100.77/24 dev eth0");
    let by_second_address = arrives(&a, "198.51.100.77", ("10.244.1.9", &b), &mac);
    assert!(!by_second_address);
    // A pod reaches no tunnel port of its own node, and a process of a node none at all.
    assert!(!arrives(&b, "198.51.100.2", ("10.244.1.9", &b), &mac));
    assert!(!attack(first.place(), "10.244.1.9"));
    // A node without a guard can only name addresses of pods of other nodes.
    cluster.object(3, LAN);
    assert!(eventually(|| attack(stranger.place(), "10.244.1.9")));
    assert!(!attack(stranger.place(), "203.0.113.9"));
}

/// The endpoint of a Service may be the tunnel port of a node, and its clients may come by the tunnel.
#[test]
fn no_service_leads_to_a_tunnel_port() {
    let host = Host::new();
    let Scene {
        cluster,
        nodes: [(first, _one), (second, two)],
        pods: [a, _b],
    } = Scene::new(&host);
    let service = "nft -f - <<'END'
        table ip service {
            chain to { type nat hook prerouting priority dstnat
                udp dport 30000 dnat to 192.0.2.1:4789
            }
            chain from { type nat hook postrouting priority srcnat
                ct status dnat masquerade
            }
        }\nEND";
    second.place().sh(service);
    let mac = first.place().mac("cni-vxlan4");
    let attack = || {
        let target = ("10.244.1.2", &a);
        reaches(&a, ("10.244.2.0", 30000), ("10.244.2.9", target), &mac)
    };
    drop(two);
    second.place().sh("nft delete table inet cni-cluster");
    assert!(attack());
    let (second, _two) = cluster.started(second, "vxlan");
    let rules = || second.place().run("nft", &["list", "ruleset"]);
    assert!(eventually(|| rules().contains("cni-cluster")));
    assert!(!attack());
}

/// Sends a datagram in a VXLAN packet that names `source`, from `from` to a tunnel's port. Returns
/// whether it arrives at the pod `b` with the address 10.244.2.2.
fn arrives(from: &Sandbox, node: &str, (source, b): (&str, &Sandbox), mac: &str) -> bool {
    reaches(from, (node, 4789), (source, ("10.244.2.2", b)), mac)
}

/// The same with another port, and any pod with its address.
fn reaches(
    from: &Sandbox,
    node: (&str, u16),
    (source, (address, pod)): (&str, (&str, &Sandbox)),
    mac: &str,
) -> bool {
    let receiver = pod.enter(|| UdpSocket::bind((address, 0)).unwrap());
    receiver
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let port = receiver.local_addr().unwrap().port();
    let target = SocketAddrV4::new(address.parse().unwrap(), port);
    let packet = tunnelled(source.parse().unwrap(), target, mac);
    let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    // The kernel may refuse it at once.
    sender.send_to(&packet, node).ok();
    receiver.recv(&mut [0; 16]).is_ok()
}

#[test]
fn devices_of_other_programs_are_reported() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let _second = cluster.node(2, WAN);
    let node = cluster.node(1, LAN);
    node.place()
        .ip("link add cni-vxlan4 type veth peer name other");
    node.place()
        .ip("link add cilium type vxlan external dstport 4789");
    node.place().ip("link set cilium up");
    let mut sections = node.sections(&cluster.api);
    sections["cluster"]["mode"] = "vxlan".into();
    let agent = node.agent(&sections);
    agent.says("no VXLAN device cni-vxlan4: another program has made a link of this name");
    agent.says("no VXLAN device cni-vxlan6: ");
    node.health_has("cluster: conflist: waits for the VXLAN devices");
    assert!(!node.conflist().exists());
    assert_eq!(
        node.place().link("cni-vxlan4")["linkinfo"]["info_kind"],
        "veth"
    );
    node.place().ip("link del cni-vxlan4");
    node.place().ip("link del cilium");
    node.expect_routes(&TO_SECOND);
}

#[test]
fn connections_live_on_when_the_mode_changes() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let mut nodes = [1, 2].map(|it| cluster.started(cluster.node(it, LAN), "vxlan"));
    let pods = [nodes[0].0.pod("a"), nodes[1].0.pod("b")];
    let [a, b] = &pods;
    expect_routes(&nodes, [&TO_SECOND, &TO_FIRST]);
    let mut connection = Connection::open(a, "10.244.2.2:80", (b, 80));
    for (mode, routes) in [
        ("direct", [&DIRECT_TO_SECOND, &DIRECT_TO_FIRST]),
        ("vxlan", [&TO_SECOND, &TO_FIRST]),
    ] {
        nodes = nodes.map(|(node, agent)| {
            drop(agent);
            cluster.started(node, mode)
        });
        expect_routes(&nodes, routes);
        assert!(connection.carries(), "{mode}");
        let has_tunnels = mode == "vxlan";
        for (node, _) in &nodes {
            let place = node.place();
            let devices = || ["cni-vxlan4", "cni-vxlan6"].map(|it| place.has_link(it));
            assert!(eventually(|| devices() == [has_tunnels; 2]), "{mode}");
            let rules = || place.run("nft", &["list", "ruleset"]);
            assert!(eventually(|| rules().contains("cni-cluster") == has_tunnels));
        }
        for [own, other] in ADDRESSES {
            assert_eq!(client_seen(a, b, other), own, "{mode}");
        }
    }
}

#[track_caller]
fn expect_routes(nodes: &[(Node<'_>, Agent); 2], routes: [&[&str; 2]; 2]) {
    for ((node, _), routes) in nodes.iter().zip(routes) {
        node.expect_routes(routes);
    }
}

#[test]
fn next_agent_finds_all_entries_and_changes_nothing() {
    let host = Host::new();
    let Scene {
        cluster,
        nodes: [(first, agent), _second],
        ..
    } = Scene::new(&host);
    drop(agent);
    let mut sections = first.sections(&cluster.api);
    sections["cluster"]["mode"] = "vxlan".into();
    let _next = first.agent(&sections);
    first.health_has("200 OK");
    let metrics = first.http("/metrics");
    let none = "cni_agent_cluster_route_changes_total 0\n";
    assert!(metrics.contains(none), "{metrics}");
}

/// The kubelet creates the Node object again only at its next start.
#[test]
fn tunnels_stay_while_the_own_node_object_is_deleted() {
    let host = Host::new();
    let scene = Scene::new(&host);
    let (first, api) = (&scene.nodes[0].0, &scene.cluster.api);
    api.delete("node-1");
    first.health_has("the API server lists no node node-1");
    first.place().ip("link del cni-vxlan4");
    assert!(eventually(|| first.place().has_link("cni-vxlan4")));
    first.expect_routes(&TO_SECOND);
}

#[test]
fn cleanup_removes_what_the_agent_made_and_nothing_else() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    let _second = cluster.node(2, WAN);
    node.place()
        .ip("route add 10.244.9.0/24 via 192.0.2.254 proto bird");
    let before = state(&node);
    let (node, agent) = cluster.started(node, "vxlan");
    node.expect_routes(&TO_SECOND);
    drop(agent);
    let mut sections = node.sections(&cluster.api);
    sections["cluster"]["mode"] = "vxlan".into();
    let run = Agent::run_in(&host, node.dir(), &sections).argument("--cleanup");
    // The file of another network stays.
    let own = fs::read(node.conflist()).unwrap();
    let other = br#"{"cniVersion": "1.0.0", "name": "b", "plugins": [{"type": "ptp"}]}"#;
    fs::write(node.conflist(), other).unwrap();
    let clean_up = || assert!(node.place().enter(|| run.run()).status.success());
    clean_up();
    assert!(node.conflist().exists());
    fs::write(node.conflist(), own).unwrap();
    let unfinished = node.conflist().with_file_name(".cni-agent-a1b2c3");
    fs::write(&unfinished, "{").unwrap();
    clean_up();
    assert!(!node.conflist().exists() && !unfinished.exists());
    assert!(!node.dir().join("nodes.json").exists());
    // The plugins' table stays, as after the last pod's DEL.
    let table = node.place().rules_from("inet cni-masquerade");
    assert!(!table.contains("elements"), "{table}");
    node.place().sh("nft delete table inet cni-masquerade");
    assert_eq!(state(&node), before);
}

/// Returns the links, routes and rules of a node.
fn state(node: &Node<'_>) -> String {
    let lists = ["-br link", "-4 route", "-6 route"].map(|it| node.place().ip(it));
    let rules = node.place().run("nft", &["--stateless", "list", "ruleset"]);
    lists.join("\n") + &rules
}
