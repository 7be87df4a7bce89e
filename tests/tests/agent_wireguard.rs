//! cni-agent joins nodes by WireGuard. Connections between pods show it, and a capture on the link
//! between the nodes shows that no packet of a pod is there unencrypted.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, LAN, Node};
use tests::packets::Packets;
use tests::traffic::{Connection, client_seen, tcp};
use tests::{Agent, Host, Place as _, Sandbox, eventually};

/// Nodes on one link, each with a pod.
struct Scene<'h> {
    cluster: Cluster<'h>,
    nodes: Vec<(Node<'h>, Agent)>,
    pods: Vec<Sandbox>,
    packets: Packets,
}

impl<'h> Scene<'h> {
    fn new(host: &'h Host, count: u8) -> Self {
        let cluster = Cluster::new(host);
        let packets = Packets::start(host);
        // They start at once, because an emulated machine needs long for each.
        let nodes: Vec<_> = (1..=count).map(|it| cluster.node(it, LAN)).collect();
        let start = |node: Node<'h>| {
            let agent = node.agent(&cluster.sections(&node, "wireguard"));
            (node, agent)
        };
        let nodes: Vec<_> = nodes.into_iter().map(start).collect();
        for (own, (node, _)) in (1..).zip(&nodes) {
            let others: Vec<_> = (1..=count).filter(|it| *it != own).collect();
            expect_routes(node, &others);
            assert!(soon(|| node.conflist().exists()), "{}", node.log());
        }
        let pods = nodes.iter().zip(["a", "b", "c"]);
        let pods = pods.map(|((node, _), name)| node.pod(name)).collect();
        Self {
            cluster,
            nodes,
            pods,
            packets,
        }
    }

    fn first(&self) -> &Node<'h> {
        &self.nodes[0].0
    }

    /// Panics if a packet of a pod was on the link between the nodes. Returns whether there were
    /// encrypted ones.
    #[track_caller]
    fn is_encrypted(&self) -> bool {
        let seen = self.packets.seen();
        let is_inner = |it: IpAddr| it.to_string().starts_with("10.244.") || is_pod_v6(it);
        let clear = seen
            .iter()
            .find(|it| is_inner(it.source) || is_inner(it.destination));
        assert_eq!(clear, None);
        seen.iter().any(|it| it.udp_port == Some(51820))
    }

    /// Returns whether the first node's pod reaches the one of the node with this number.
    fn reaches(&self, number: u8) -> bool {
        let addresses = addresses(number);
        // Both are tried, so that each has a chance to leave in the clear.
        let [v4, v6] = addresses.map(|it| self.pods[0].pings(&it));
        v4 && v6
    }
}

fn is_pod_v6(address: IpAddr) -> bool {
    address.to_string().starts_with("fd00:10:244:")
}

fn addresses(number: u8) -> [String; 2] {
    [
        format!("10.244.{number}.2"),
        format!("fd00:10:244:{number}::2"),
    ]
}

/// Waits until the node has routes through the device to the pods of these nodes and of no other one.
#[track_caller]
fn expect_routes(node: &Node<'_>, reached: &[u8]) {
    let mut expected: Vec<_> = reached
        .iter()
        .flat_map(|it| {
            [
                format!("10.244.{it}.0/24"),
                format!("fd00:10:244:{it}::/64"),
            ]
        })
        .collect();
    expected.sort();
    let routes = || {
        let families = ["-4", "-6"].into_iter();
        let list = |it| {
            node.place()
                .ip(&format!("{it} route show dev cni-wg proto 201"))
        };
        let mut routes: Vec<_> = families
            .map(list)
            .flat_map(|it| it.lines().map(first_word).collect::<Vec<_>>())
            .collect();
        routes.sort();
        routes
    };
    let is_so =
        (0..3).any(|_| eventually(|| node.place().has_link("cni-wg") && routes() == expected));
    assert!(is_so, "{:?}: {}", node.place().ip("route"), node.log());
}

/// Waits like [`eventually`], but longer, and leaves an emulated processor to the agents.
fn soon(condition: impl Fn() -> bool) -> bool {
    (0..3).any(|_| {
        eventually(|| {
            park_timeout(Duration::from_millis(300));
            condition()
        })
    })
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

fn key(cluster: &Cluster<'_>, node: &str) -> Option<String> {
    let object = cluster.api.object(node);
    let key = object["metadata"]["annotations"][ANNOTATION].as_str();
    key.map(str::to_owned)
}

fn key_file(node: &Node<'_>) -> PathBuf {
    node.dir().join("wireguard.key")
}

const ANNOTATION: &str = "cni-cluster/wireguard-public-key";

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

/// An announcement proves nothing, so no node may take the packets of another one by it.
#[test]
fn node_without_a_key_of_its_own_is_not_reached_and_nothing_leaks() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let (api, first) = (&scene.cluster.api, scene.first());
    let third = scene.cluster.machine(3, LAN);
    third.place().ip("address add 10.244.3.2/32 dev lo");
    let copied = key(&scene.cluster, "node-2").unwrap();
    scene.cluster.object(3, LAN);
    api.annotate("node-3", ANNOTATION, Some(FOREIGN_KEY));
    expect_routes(first, &[2, 3]);
    let cases = [
        (
            None,
            "node node-3 has announced no WireGuard key",
            [2].as_slice(),
        ),
        (
            Some("short"),
            "\"short\" is no network or address or key",
            &[2],
        ),
        (
            Some(copied.as_str()),
            "nodes node-3 and node-2 have announced the same WireGuard key",
            &[],
        ),
    ];
    for (announced, said, reached) in cases {
        api.annotate("node-3", ANNOTATION, announced);
        expect_routes(first, reached);
        scene.nodes[0].1.says(said);
        refuses(first, "10.244.3.0/24");
        assert!(!scene.reaches(3));
        assert_eq!(scene.reaches(2), reached.contains(&2));
        scene.is_encrypted();
    }
    api.annotate("node-3", ANNOTATION, None);
    expect_routes(first, &[2]);
    assert!(soon(|| scene.reaches(2)));
    node_leaves(&scene, "node-3", "10.244.3.0/24");
    assert!(scene.is_encrypted());
}

/// Deletes a node. Open connections to its pods must not go on in the clear, nor must what other nodes
/// send to a pod of this node that has left.
fn node_leaves(scene: &Scene<'_>, name: &str, network: &str) {
    scene.cluster.api.delete(name);
    let nodes = scene.first().dir().join("nodes.json");
    assert!(soon(|| !fs::read_to_string(&nodes).unwrap().contains(name)));
    refuses(scene.first(), network);
    refuses(scene.first(), "10.244.1.0/24");
}

/// Expects a route that keeps packets to the network from leaving in the clear.
#[track_caller]
fn refuses(node: &Node<'_>, network: &str) {
    let routes = node.place().ip(&format!("route show {network}"));
    assert!(routes.contains("unreachable"), "{routes}");
}

#[test]
fn connection_lives_on_while_the_key_is_replaced() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let first = scene.first();
    let mut connection = Connection::open(&scene.pods[0], "10.244.2.2:80", (&scene.pods[1], 80));
    let before = (
        key(&scene.cluster, "node-1"),
        fs::read(key_file(first)).unwrap(),
    );
    let rotate = rotation(&host, &scene);
    assert!(rotate.contains("prepared the key"), "{rotate}");
    let prepared = first.dir().join("wireguard.key.next");
    assert!(prepared.exists());
    // Any change of a node lets the agent look.
    scene
        .cluster
        .api
        .set_conditions("node-2", &serde_json::json!([]));
    let gap = longest_gap(&scene.pods[0], &scene.pods[1], || !prepared.exists());
    eprintln!("no packet arrived for {gap:?}");
    assert!(gap < Duration::from_secs(10), "{gap:?}");
    assert_ne!(key(&scene.cluster, "node-1"), before.0);
    assert_ne!(fs::read(key_file(first)).unwrap(), before.1);
    assert!(connection.carries());
    assert!(scene.reaches(2) && scene.is_encrypted());
}

/// Requests another key for the first node, and returns what the command prints.
fn rotation(host: &Host, scene: &Scene<'_>) -> String {
    let first = scene.first();
    let sections = scene.cluster.sections(first, "wireguard");
    let run = Agent::run_in(host, first.dir(), &sections).argument("--rotate-key");
    let output = first.place().enter(|| run.run());
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Sends a datagram each 10 ms until `is_done`, and 3 s longer. Returns the longest time without one
/// that arrives.
fn longest_gap(from: &Sandbox, to: &Sandbox, is_done: impl Fn() -> bool) -> Duration {
    let receiver = to.enter(|| UdpSocket::bind("10.244.2.2:0").unwrap());
    receiver.set_nonblocking(true).unwrap();
    let target: SocketAddr = receiver.local_addr().unwrap();
    let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let (start, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    let mut end = None;
    while end.is_none_or(|it: Instant| it.elapsed() < Duration::from_secs(3)) {
        assert!(start.elapsed() < Duration::from_secs(90), "the key stays");
        sender.send_to(b"x", target).ok();
        park_timeout(Duration::from_millis(10));
        while receiver.recv(&mut [0; 8]).is_ok() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        if end.is_none() && is_done() {
            end = Some(Instant::now());
        }
    }
    longest.max(last.elapsed())
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
    assert_eq!(key(&cluster, "node-1"), None);
    drop(other);
    expect_routes(&node, &[2]);
    assert!(soon(|| node.conflist().exists()));
    assert!(soon(|| key(&cluster, "node-1").is_some()));
    drop(agent);
    let run = Agent::run_in(&host, node.dir(), &sections).argument("--cleanup");
    assert!(node.place().enter(|| run.run()).status.success());
    assert!(!key_file(&node).exists() && !node.conflist().exists());
    // Pods may still need it.
    node.place().sh("nft delete table inet cni-masquerade");
    assert_eq!(state(&node), before);
}

const FOREIGN_KEY: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

/// Returns the links, routes and rules of a node.
fn state(node: &Node<'_>) -> String {
    let lists = ["-br link", "-4 route", "-6 route"].map(|it| node.place().ip(it));
    let rules = node.place().run("nft", &["--stateless", "list", "ruleset"]);
    lists.join("\n") + &rules
}
