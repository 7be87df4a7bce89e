//! Nodes of a cluster in the mode `auto`. Captures on the links between them show which way packets take.

use std::net::IpAddr;

use crate::cluster::{Cluster, Link, Node, pods};
use crate::packets::Packets;
use crate::traffic::client_seen;
use crate::{Agent, Host, Place as _, Sandbox, eventually};

/// Nodes with agents and a pod each.
#[derive(Debug)]
pub struct Scene<'h> {
    /// The cluster.
    pub cluster: Cluster<'h>,
    /// The nodes and their agents.
    pub nodes: Vec<(Node<'h>, Agent)>,
    pods: Vec<Sandbox>,
    packets: Packets,
}

impl<'h> Scene<'h> {
    /// Makes a node on each of the links, with the number of its place and its mode, and then starts the
    /// agents.
    pub fn new(host: &'h Host, nodes: &[(Link, &str)]) -> Self {
        let cluster = Cluster::new(host);
        Self::with(host, cluster, nodes, |_| ())
    }

    /// The same in this cluster. `prepare` changes the namespace of each node before its agent starts.
    pub fn with(
        host: &'h Host,
        cluster: Cluster<'h>,
        nodes: &[(Link, &str)],
        prepare: impl Fn(&Sandbox),
    ) -> Self {
        let numbered = (1..).zip(nodes);
        let made: Vec<_> = numbered
            .map(|(number, (link, mode))| (cluster.node(number, *link), *mode))
            .collect();
        let nodes: Vec<_> = made
            .into_iter()
            .map(|(node, mode)| {
                prepare(node.place());
                cluster.started(node, mode)
            })
            .collect();
        Self {
            cluster,
            pods: pods(&nodes),
            nodes,
            packets: Packets::start(host),
        }
    }

    /// Returns the namespace of the node with this number.
    pub fn place(&self, number: u8) -> &Sandbox {
        self.nodes[usize::from(number) - 1].0.place()
    }

    /// Returns the pod of the node with this number.
    pub fn pod(&self, number: u8) -> &Sandbox {
        &self.pods[usize::from(number) - 1]
    }

    /// Returns the links by which the node `from` sends packets to pods of the node `to`.
    pub fn ways(&self, from: u8, to: u8) -> [String; 2] {
        addresses(to).map(|it| {
            let route = self.place(from).ip_json(&format!("route get {it}"));
            route[0]["dev"].as_str().unwrap_or_default().to_owned()
        })
    }

    /// Waits until both nodes send packets of pods to each other by these links.
    #[track_caller]
    pub fn expect_ways(&self, [one, other]: [u8; 2], links: [&str; 2]) {
        let ways = || [self.ways(one, other), self.ways(other, one)];
        let is_so = eventually(|| ways() == [links, links]);
        assert!(is_so, "{:?}: {}", ways(), self.nodes[0].0.log());
    }

    /// Expects that pods of the nodes reach each other without NAT, and that the packets between them
    /// are directly on the links between the nodes, or are not.
    #[track_caller]
    pub fn expect_traffic(&self, [one, other]: [u8; 2], way: Way) {
        self.packets.seen();
        for [own, peer] in [[one, other], [other, one]] {
            for (address, target) in addresses(own).iter().zip(&addresses(peer)) {
                assert_eq!(client_seen(self.pod(own), self.pod(peer), target), *address);
            }
        }
        let pods: Vec<IpAddr> = [one, other]
            .iter()
            .flat_map(|it| addresses(*it).map(|it| it.parse().unwrap()))
            .collect();
        let seen = self.packets.seen();
        let direct = seen
            .iter()
            .filter(|it| pods.contains(&it.source) && pods.contains(&it.destination));
        let families: Vec<_> = direct.map(|it| it.source.is_ipv4()).collect();
        let is_direct = [true, false].map(|it| families.contains(&it));
        assert_eq!(is_direct, [way == Way::Direct; 2]);
        let tunnelled = seen.iter().filter(|it| it.udp_port == Some(4789)).count();
        assert_eq!(tunnelled > 0, way == Way::Tunnel, "{tunnelled}");
    }
}

/// The way of packets between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As they are.
    Direct,
    /// By VXLAN.
    Tunnel,
}

/// Returns the addresses of the pod of the node with this number.
pub fn addresses(number: u8) -> [String; 2] {
    [
        format!("10.244.{number}.2"),
        format!("fd00:10:244:{number}::2"),
    ]
}

/// The links of packets of both families that take the direct way.
pub const DIRECT: [&str; 2] = ["eth0", "eth0"];
/// The links of packets of both families that take the tunnel.
pub const TUNNEL: [&str; 2] = ["cni-vxlan4", "cni-vxlan6"];
