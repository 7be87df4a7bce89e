//! cni-agent on many nodes: each one reaches all others, and follows those that join and leave.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::{Cluster, LAN, Node, WAN};
use tests::traffic::client_seen;
use tests::{Agent, Host, Place as _, eventually, pause};

/// The nodes are on both sides of a router.
#[test]
fn fifty_nodes_reach_each_other_and_follow_one_that_joins_and_leaves() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let nodes: Vec<_> = (1..=NODES).map(|it| node(&cluster, it)).collect();
    let agents: Vec<_> = nodes.iter().map(|it| start(&cluster, it)).collect();
    let expect = |others: usize| {
        for (node, agent) in nodes.iter().zip(&agents) {
            // On a busy machine, fifty agents need longer than one.
            let mut times = 0..3;
            let is_whole = times.any(|_| eventually(|| node.cluster_routes().len() == 2 * others));
            assert!(is_whole, "{:?}: {}", node.cluster_routes(), agent.log());
        }
    };
    expect(nodes.len() - 1);
    let [first, middle, last] = [0_usize, 24, 49].map(|place| {
        let node = &nodes[place];
        node.health_has("200 OK");
        node.pod(&format!("pod-{}", place + 1))
    });
    for (client, server, addresses) in [
        (&first, &last, ["10.244.1.2", "10.244.50.2"]),
        (&last, &middle, ["10.244.50.2", "10.244.25.2"]),
        (&middle, &first, ["10.244.25.2", "10.244.1.2"]),
    ] {
        assert_eq!(client_seen(client, server, addresses[1]), addresses[0]);
    }
    let joined = node(&cluster, NODES + 1);
    let _agent = start(&cluster, &joined);
    joined.health_has("200 OK");
    expect(nodes.len());
    let new = joined.pod("new");
    assert_eq!(client_seen(&new, &first, "10.244.1.2"), "10.244.51.2");
    assert_eq!(client_seen(&last, &new, "10.244.51.2"), "10.244.50.2");
    cluster.api.delete(&joined.name());
    expect(nodes.len() - 1);
    for node in &nodes {
        let neighbours = node.place().ip("neigh show nud permanent dev cni-vxlan4");
        assert_eq!(neighbours.lines().count(), nodes.len() - 1);
    }
}

fn node<'h>(cluster: &Cluster<'h>, number: u8) -> Node<'h> {
    cluster.node(number, if number.is_multiple_of(2) { LAN } else { WAN })
}

fn start(cluster: &Cluster<'_>, node: &Node<'_>) -> Agent {
    let mut sections = node.sections(&cluster.api);
    sections["cluster"]["mode"] = "vxlan".into();
    node.agent(&sections)
}

const NODES: u8 = 50;

#[test]
fn agent_may_be_killed_at_any_moment() {
    let host = Host::new();
    let cluster = Cluster::new(&host);
    let (second, _other) = cluster.started(cluster.node(2, LAN), "vxlan");
    let first = cluster.node(1, LAN);
    let sections = cluster.sections(&first, "vxlan");
    for milliseconds in (0..240).step_by(12) {
        let agent = first.agent(&sections);
        pause(Duration::from_millis(milliseconds));
        drop(agent);
        for file in [first.conflist(), first.dir().join("nodes.json")] {
            let whole = fs::read(file).map(|it| serde_json::from_slice::<Value>(&it));
            assert!(matches!(whole, Err(_) | Ok(Ok(_))), "{whole:?}");
        }
    }
    let _agent = first.agent(&sections);
    first.health_has("200 OK");
    let [a, b] = [first.pod("a"), second.pod("b")];
    for [own, other] in [
        ["10.244.1.2", "10.244.2.2"],
        ["fd00:10:244:1::2", "fd00:10:244:2::2"],
    ] {
        assert_eq!(client_seen(&a, &b, other), own);
        assert_eq!(client_seen(&b, &a, own), other);
    }
}
