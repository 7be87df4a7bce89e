//! cni-agent reaches the pods of a node directly where packets of pods pass, otherwise by VXLAN.
//! Captures on the links between the nodes show which way packets take.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::thread::scope;
use std::time::{Duration, Instant};

use tests::auto::{DIRECT, Scene, TUNNEL, Way, addresses};
use tests::cluster::{Cluster, LAN, Node, WAN};
use tests::traffic::{Connection, client_seen};
use tests::{Host, Place as _, Sandbox, eventually, pause};

/// Lets the switch drop packets from or to addresses of pods, as clouds do.
fn filter(host: &Host, which: &str) {
    host.sh(&format!(
        "nft 'add table bridge cloud; \
         add chain bridge cloud forward {{ type filter hook forward priority 0; }}; \
         add rule bridge cloud forward ip {which} 10.244.0.0/16 drop; \
         add rule bridge cloud forward ip6 {which} fd00:10:244::/48 drop'"
    ));
}

fn unfilter(host: &Host) {
    host.sh("nft delete table bridge cloud");
}

#[test]
fn nodes_of_one_network_become_direct_and_one_behind_a_router_does_not() {
    let host = Host::new();
    let scene = Scene::new(&host, &[(LAN, "auto"), (LAN, "auto"), (WAN, "auto")]);
    scene.expect_ways([1, 2], DIRECT);
    scene.expect_ways([1, 3], TUNNEL);
    scene.expect_ways([2, 3], TUNNEL);
    scene.expect_traffic([1, 2], Way::Direct);
    scene.expect_traffic([1, 3], Way::Tunnel);
    scene.expect_traffic([2, 3], Way::Tunnel);
    for number in [2, 3] {
        for (target, own) in addresses(number)
            .iter()
            .zip(["10.244.1.0", "fd00:10:244:1::"])
        {
            let seen = client_seen(scene.place(1), scene.pod(number), target);
            assert!(seen.starts_with(own), "{target}: {seen}");
        }
    }
    assert_eq!(scene.pod(1).link("eth0")["mtu"], 1430);
    let metrics = scene.nodes[0].0.http("/metrics");
    for line in [
        "cni_agent_cluster_routes 4\n",
        "cni_agent_cluster_direct_routes 2\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    // Another node gets the network of the second one.
    let api = &scene.cluster.api;
    api.set(
        "node-2",
        &["10.244.2.0/24", "fd00:10:244:2::/64"],
        &["198.51.100.2", "2001:db8:1::2"],
    );
    assert!(eventually(|| scene.ways(1, 2) == TUNNEL));
    api.set(
        "node-2",
        &["10.244.2.0/24", "fd00:10:244:2::/64"],
        &["192.0.2.9", "2001:db8::9"],
    );
    pause(Duration::from_secs(5));
    assert_eq!(scene.ways(1, 2), TUNNEL);
}

#[test]
fn connection_lives_on_while_the_network_begins_and_ends_to_drop_packets_of_pods() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    filter(&host, "saddr");
    let scene = Scene::with(&host, cluster, &[(LAN, "auto"), (LAN, "auto")], |_| ());
    let mut connection = Connection::open(scene.pod(1), "10.244.2.2:80", (scene.pod(2), 80));
    let mut from_host = Connection::open(scene.place(1), "10.244.2.2:81", (scene.pod(2), 81));
    let stays_in_tunnel = || {
        pause(Duration::from_secs(5));
        scene.expect_ways([1, 2], TUNNEL);
        scene.expect_traffic([1, 2], Way::Tunnel);
    };
    stays_in_tunnel();
    unfilter(&host);
    filter(&host, "daddr");
    stays_in_tunnel();
    unfilter(&host);
    let pods = [scene.pod(1), scene.pod(2)];
    let (count, _) = lost(pods, || scene.ways(1, 2) == DIRECT);
    assert_eq!(count, 0);
    scene.expect_ways([1, 2], DIRECT);
    assert!(connection.carries() && from_host.carries());
    scene.expect_traffic([1, 2], Way::Direct);
    filter(&host, "saddr");
    let (count, time) = lost(pods, || {
        scene.ways(1, 2) == TUNNEL && scene.ways(2, 1) == TUNNEL
    });
    eprintln!("lost {count} packets, for {time:?}");
    assert!(time < Duration::from_secs(20), "{time:?}");
    assert!(eventually(|| connection.carries() && from_host.carries()));
    scene.expect_traffic([1, 2], Way::Tunnel);
}

/// Sends a datagram each 10 ms until `is_done`, and 2 s longer. Returns how many did not arrive, and the
/// longest time in which all were lost.
fn lost([from, to]: [&Sandbox; 2], is_done: impl Fn() -> bool) -> (usize, Duration) {
    let receiver = to.enter(|| UdpSocket::bind("10.244.2.2:0").unwrap());
    receiver.set_nonblocking(true).unwrap();
    let target: SocketAddr = receiver.local_addr().unwrap();
    let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let (mut sent, mut arrived, mut end) = (Vec::new(), BTreeSet::new(), None);
    let mut buffer = [0; 8];
    while end.is_none_or(|it: Instant| it.elapsed() < Duration::from_secs(2)) {
        let number = u64::try_from(sent.len()).unwrap();
        sent.push(Instant::now());
        sender.send_to(&number.to_be_bytes(), target).ok();
        pause(Duration::from_millis(10));
        while receiver.recv(&mut buffer).is_ok() {
            arrived.insert(usize::try_from(u64::from_be_bytes(buffer)).unwrap());
        }
        let is_late = sent[0].elapsed() > Duration::from_mins(1);
        assert!(!is_late, "the way stays");
        if end.is_none() && is_done() {
            end = Some(Instant::now());
        }
    }
    let (mut last, mut longest) = (sent[0], Duration::ZERO);
    for number in &arrived {
        longest = longest.max(sent[*number] - last);
        last = sent[*number];
    }
    (sent.len() - arrived.len(), longest)
}

/// Packets of the second node's pods do not pass, so the first one takes no direct route, either:
/// answers to connections of its Services would be lost.
#[test]
fn filter_of_one_node_keeps_both_ways_in_the_tunnel() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    host.sh("nft 'add table bridge cloud; \
         add chain bridge cloud forward { type filter hook forward priority 0; }; \
         add rule bridge cloud forward ip saddr 10.244.2.0/24 drop; \
         add rule bridge cloud forward ip6 saddr fd00:10:244:2::/64 drop'");
    let scene = Scene::with(&host, cluster, &[(LAN, "auto"), (LAN, "auto")], |_| ());
    pause(Duration::from_secs(6));
    scene.expect_ways([1, 2], TUNNEL);
    scene.expect_traffic([1, 2], Way::Tunnel);
}

/// A node with another mode, like one that has not yet tried, answers through the tunnel.
#[test]
fn packets_pass_while_one_node_takes_the_direct_way_and_the_other_the_tunnel() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let nodes = [(LAN, "auto"), (LAN, "vxlan")];
    let scene = Scene::with(&host, cluster, &nodes, |place| {
        place.set_sysctl("net/ipv4/conf/default/rp_filter", "1");
    });
    assert!(eventually(|| scene.ways(1, 2) == DIRECT));
    assert_eq!(scene.ways(2, 1), TUNNEL);
    scene
        .place(1)
        .set_sysctl("net/ipv4/conf/all/rp_filter", "1");
    let [a, b] = [scene.pod(1), scene.pod(2)];
    for _ in 0..2 {
        for (own, other) in addresses(1).iter().zip(&addresses(2)) {
            assert_eq!(client_seen(a, b, other), *own);
            assert_eq!(client_seen(b, a, own), *other);
            assert_ne!(client_seen(scene.place(1), b, other), "none");
            assert_ne!(client_seen(scene.place(2), a, own), "none");
        }
        // The agent tries all routes again.
        pause(Duration::from_secs(14));
        assert_eq!(scene.ways(1, 2), DIRECT);
    }
}

/// A node that accepts packets only through the link of its route back loses none.
#[test]
fn strict_reverse_path_filter_keeps_the_tunnel() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let nodes = [(LAN, "auto"), (LAN, "auto")];
    let scene = Scene::with(&host, cluster, &nodes, |place| {
        place.set_sysctl("net/ipv4/conf/all/rp_filter", "1");
    });
    scene.expect_ways([1, 2], [TUNNEL[0], DIRECT[1]]);
    let [a, b] = [scene.pod(1), scene.pod(2)];
    for (own, other) in addresses(1).iter().zip(&addresses(2)) {
        assert_eq!(client_seen(a, b, other), *own);
        assert_eq!(client_seen(b, a, own), *other);
    }
}

/// Waits until doctor finds this about the cluster.
#[track_caller]
fn says(node: &Node<'_>, level: &str, texts: &[&str]) {
    let is_said = eventually(|| node.doctor().holds(level, "cluster", texts));
    assert!(is_said, "{texts:?}: {:?}", node.doctor());
}

#[test]
fn doctor_names_the_way_to_each_node() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let nodes = [1, 2, 3].map(|it| cluster.node(it, LAN));
    let [first, second, _] = &nodes;
    let mut sections = cluster.sections(first, "auto");
    sections["cluster"]
        .as_object_mut()
        .unwrap()
        .remove("stateFile");
    let _agent = first.agent(&sections);
    let _other = second.agent(&cluster.sections(second, "auto"));
    // The third one has no agent.
    says(
        first,
        "warning",
        &["no answer from 10.244.3.0 (node node-3)"],
    );
    cluster.api.delete("node-3");
    says(
        first,
        "ok",
        &["to the pods of 1 other node; directly to node-2"],
    );
    filter(&host, "saddr");
    says(
        first,
        "ok",
        &["other node; by VXLAN, without direct answers, to node-2"],
    );
    first.place().set_sysctl("net/ipv4/conf/all/rp_filter", "1");
    says(first, "warning", &["rp_filter of eth0 is 1"]);
    first.place().ip("link set eth0 name eth0.100");
    says(first, "warning", &["rp_filter of eth0.100 is 1"]);
    first
        .place()
        .set_sysctl("net/ipv4/conf/eth0.100/rp_filter", "2");
    says(
        first,
        "ok",
        &["other node; by VXLAN, without direct answers, to node-2"],
    );
}

#[test]
fn next_agent_changes_no_route() {
    let host = Host::new();
    let Scene {
        cluster, mut nodes, ..
    } = Scene::new(&host, &[(LAN, "auto"), (LAN, "auto"), (WAN, "auto")]);
    let _others = nodes.split_off(1);
    let (first, agent) = nodes.remove(0);
    for address in addresses(2) {
        let route = || first.place().ip(&format!("route get {address}"));
        assert!(eventually(|| route().contains("eth0")), "{}", first.log());
    }
    let monitor = "timeout 15 ip monitor route || true";
    let events = scope(|scope| {
        let events = scope.spawn(|| first.place().sh(monitor));
        pause(Duration::from_secs(1));
        drop(agent);
        let sections = cluster.sections(&first, "auto");
        let next = first.agent(&sections);
        first.health_has("200 OK");
        let events = events.join().unwrap();
        drop(next);
        events
    });
    assert_eq!(events, "");
}
