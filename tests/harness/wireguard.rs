//! Nodes that WireGuard joins. A capture on the link between them shows that no packet of a pod is there
//! unencrypted.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::{Cluster, LAN, Node, pods};
use crate::packets::Packets;
use crate::{Agent, Host, Place as _, Sandbox, eventually, pause};

/// Nodes on one link, each with a pod.
#[derive(Debug)]
pub struct Scene<'h> {
    /// The cluster.
    pub cluster: Cluster<'h>,
    /// The nodes and their agents.
    pub nodes: Vec<(Node<'h>, Agent)>,
    /// The pod of each node.
    pub pods: Vec<Sandbox>,
    /// The capture.
    pub packets: Packets,
}

impl<'h> Scene<'h> {
    /// Makes up to three nodes, and waits for their routes and conflists.
    pub fn new(host: &'h Host, count: u8) -> Self {
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
        Self {
            cluster,
            pods: pods(&nodes),
            nodes,
            packets,
        }
    }

    /// Returns the first node.
    pub fn first(&self) -> &Node<'h> {
        &self.nodes[0].0
    }

    /// Panics if a packet of a pod was on the link between the nodes. Returns whether there were
    /// encrypted ones.
    #[track_caller]
    pub fn is_encrypted(&self) -> bool {
        let seen = self.packets.seen();
        let is_inner = |it: IpAddr| it.to_string().starts_with("10.244.") || is_pod_v6(it);
        let clear = seen
            .iter()
            .find(|it| is_inner(it.source) || is_inner(it.destination));
        assert_eq!(clear, None);
        seen.iter().any(|it| it.udp_port == Some(51820))
    }

    /// Returns whether the first node's pod reaches the one of the node with this number.
    pub fn reaches(&self, number: u8) -> bool {
        let addresses = addresses(number);
        // Both are tried, so that each has a chance to leave in the clear.
        let [v4, v6] = addresses.map(|it| self.pods[0].pings(&it));
        v4 && v6
    }
}

fn is_pod_v6(address: IpAddr) -> bool {
    address.to_string().starts_with("fd00:10:244:")
}

/// Returns the addresses of the pod of the node with this number.
pub fn addresses(number: u8) -> [String; 2] {
    [
        format!("10.244.{number}.2"),
        format!("fd00:10:244:{number}::2"),
    ]
}

/// Waits until the node has routes through the device to the pods of these nodes and of no other one.
#[track_caller]
pub fn expect_routes(node: &Node<'_>, reached: &[u8]) {
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
pub fn soon(condition: impl Fn() -> bool) -> bool {
    (0..3).any(|_| {
        eventually(|| {
            pause(Duration::from_millis(300));
            condition()
        })
    })
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns the annotation with the node's key.
pub fn announcement(cluster: &Cluster<'_>, node: &str) -> Option<String> {
    let object = cluster.api.object(node);
    let value = object["metadata"]["annotations"][ANNOTATION].as_str();
    value.map(str::to_owned)
}

/// Returns the file of the node's key.
pub fn key_file(node: &Node<'_>) -> PathBuf {
    node.dir().join("wireguard.key")
}

/// The annotation with the key of a node.
pub const ANNOTATION: &str = "cni-cluster/wireguard-public-key";
