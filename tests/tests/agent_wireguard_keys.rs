//! Keys of WireGuard: nodes that announce none or another node's, and what replaces a node's key.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, LAN, Node};
use tests::traffic::Connection;
use tests::wireguard::{ANNOTATION, Scene, announcement, expect_routes, key_file, soon};
use tests::{Agent, Host, Place as _, Sandbox, pause};

/// A node can announce only a key that it has, so none takes the packets of another one by it.
#[test]
fn node_without_a_key_of_its_own_is_not_reached_and_nothing_leaks() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let (api, first) = (&scene.cluster.api, scene.first());
    let third = scene.cluster.machine(3, LAN);
    third.place().ip("address add 10.244.3.2/32 dev lo");
    let copied = announcement(&scene.cluster, "node-2").unwrap();
    scene.cluster.object(3, LAN);
    for announced in [None, Some("short"), Some(copied.as_str())] {
        api.annotate("node-3", ANNOTATION, Some(FOREIGN_KEY));
        expect_routes(first, &[2, 3]);
        api.annotate("node-3", ANNOTATION, announced);
        expect_routes(first, &[2]);
        let said = "node node-3 has announced no WireGuard key of its own";
        scene.nodes[0].1.says(said);
        refuses(first, "10.244.3.0/24");
        assert!(!scene.reaches(3));
        assert!(scene.reaches(2));
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
    let routes = || node.place().ip(&format!("route show {network}"));
    assert!(soon(|| routes().contains("unreachable")), "{}", routes());
}

#[test]
fn node_with_a_copied_disk_makes_a_key_of_its_own() {
    let host = Host::new();
    let mut scene = Scene::new(&host, 2);
    let second = &scene.nodes[1].0;
    let third = scene.cluster.node(3, LAN);
    for name in ["wireguard.key", "nodes.json"] {
        fs::copy(second.dir().join(name), third.dir().join(name)).unwrap();
    }
    let before = announcement(&scene.cluster, "node-2");
    let agent = third.agent(&scene.cluster.sections(&third, "wireguard"));
    expect_routes(scene.first(), &[2, 3]);
    assert!(soon(|| third.conflist().exists()));
    agent.says("had the key of another node");
    let [copy, original] = [&third, second].map(|it| fs::read(key_file(it)).unwrap());
    assert_ne!(copy, original);
    assert_eq!(announcement(&scene.cluster, "node-2"), before);
    scene.pods.push(third.pod("c"));
    assert!(soon(|| scene.reaches(2) && scene.reaches(3)));
    assert!(scene.is_encrypted());
}

#[test]
fn connection_lives_on_while_the_key_is_replaced() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let first = scene.first();
    let mut connection = Connection::open(&scene.pods[0], "10.244.2.2:80", (&scene.pods[1], 80));
    let before = (
        announcement(&scene.cluster, "node-1"),
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
    assert_ne!(announcement(&scene.cluster, "node-1"), before.0);
    assert_ne!(fs::read(key_file(first)).unwrap(), before.1);
    assert!(connection.carries());
    assert!(scene.reaches(2) && scene.is_encrypted());
}

#[test]
fn damaged_key_changes_nothing() {
    let host = Host::new();
    let scene = Scene::new(&host, 2);
    let first = scene.first();
    fs::write(key_file(first), "damaged\n").unwrap();
    let is_reported = || first.http("/healthz").contains("cluster: key: read");
    scene.cluster.object(9, LAN);
    assert!(soon(is_reported));
    scene.nodes[0].1.signal(Signal::SIGKILL);
    assert!(soon(|| !is_reported()));
    let _agent = first.agent(&scene.cluster.sections(first, "wireguard"));
    assert!(soon(is_reported));
    refuses(first, "10.244.9.0/24");
    expect_routes(first, &[2]);
    assert!(scene.reaches(2) && scene.is_encrypted());
    assert_eq!(fs::read(key_file(first)).unwrap(), b"damaged\n");
}

#[test]
fn node_is_ready_only_after_the_announcement() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let node = cluster.node(1, LAN);
    cluster.api.refuse_patches(403);
    let _agent = node.agent(&cluster.sections(&node, "wireguard"));
    let waits = "cluster: conflist: waits until the API server has the WireGuard key";
    assert!(soon(|| node.http("/healthz").contains(waits)));
    assert!(!node.conflist().exists());
    cluster.api.refuse_patches(0);
    assert!(soon(|| node.conflist().exists()));
    assert!(soon(|| node.http("/healthz").contains("200 OK")));
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
        pause(Duration::from_millis(10));
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

/// What node-3 announces with the first private key of RFC 8032, section 7.1.
const FOREIGN_KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURqGFWUbi71MPb0e6rzWrGnBPbwr\
                           n4pYC99ftLZISUO6Tv1YPLLWc2SMtBmrJM6LDUkUs8nyIaFxwZzog/13uxsC";
