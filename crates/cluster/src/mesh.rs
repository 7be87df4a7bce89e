//! The WireGuard device of a node, which encrypts packets to the pods of all other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

use crate::key::{PrivateKey, PublicKey};
use crate::node::Node;
use crate::peers::Peers;

/// The desired WireGuard device of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// The node's own key.
    pub key: PrivateKey,
    /// The UDP port at which all nodes receive packets.
    pub port: u16,
    /// Address of this node, whose link has the encrypted packets.
    pub local: IpAddr,
    /// Addresses of the device, the sources of the node's own packets to pods: the first one of each
    /// pod CIDR, which no pod gets. The other nodes accept no source outside of the pod CIDRs.
    pub addresses: Vec<IpAddr>,
    /// The other nodes by their keys.
    pub remotes: BTreeMap<PublicKey, Remote>,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where the node receives packets.
    pub endpoint: SocketAddr,
    /// The networks of its pods: the only destinations of packets to it and sources of packets from
    /// it.
    pub networks: BTreeSet<IpNetwork>,
}

/// Name of the device.
pub const DEVICE: &str = "cni-wg";

impl Mesh {
    /// Returns the device of `node`; `None` if the node has no `InternalIP`.
    pub fn of(node: &Node, (key, port): (PrivateKey, u16), peers: &Peers) -> Option<Self> {
        let mut remotes = BTreeMap::new();
        for (network, peer) in &peers.networks {
            let Some(key) = peer.key else {
                continue;
            };
            let remote = remotes.entry(key).or_insert_with(|| Remote {
                endpoint: SocketAddr::new(peer.address, port),
                networks: BTreeSet::new(),
            });
            remote.networks.insert(*network);
        }
        Some(Self {
            key,
            port,
            local: node.underlay()?,
            addresses: node.pod_cidrs.iter().map(IpNetwork::network).collect(),
            remotes,
        })
    }

    /// Returns how many bytes of the link's MTU the device needs: the headers of the outer IP, UDP and
    /// WireGuard, and the authentication tag.
    pub fn overhead(&self) -> u32 {
        let ip = if self.local.is_ipv4() { 20 } else { 40 };
        ip + 8 + 16 + 16
    }
}

/// What the kernel has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub key: Option<PublicKey>,
    pub port: u16,
    pub remotes: BTreeMap<PublicKey, Option<Remote>>,
}

/// What a device needs in order to become the desired one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Whether the kernel has to forget all other nodes first, because its key or port is another
    /// one. Each node that it gets afterwards begins a new session at once.
    pub is_reset: bool,
    /// Other nodes to add or to change.
    pub set: Vec<PublicKey>,
    /// Other nodes to remove.
    pub remove: Vec<PublicKey>,
}

impl Changes {
    pub fn between(found: &Found, desired: &Mesh) -> Self {
        let is_reset = found.key != Some(desired.key.public()) || found.port != desired.port;
        let differs = |(key, remote): &(&PublicKey, &Remote)| {
            is_reset || found.remotes.get(key).and_then(Option::as_ref) != Some(*remote)
        };
        let set = desired.remotes.iter().filter(differs).map(|it| *it.0);
        let others = found.remotes.keys();
        let remove = others.filter(|it| !is_reset && !desired.remotes.contains_key(it));
        Self {
            is_reset,
            set: set.collect(),
            remove: remove.copied().collect(),
        }
    }

    /// Returns the number of changes.
    pub fn count(&self) -> usize {
        usize::from(self.is_reset) + self.set.len() + self.remove.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Nodes;

    fn node(number: u8, key: Option<PublicKey>) -> Node {
        Node {
            pod_cidrs: vec![
                format!("10.244.{number}.0/24").parse().unwrap(),
                format!("fd00:{number}::/64").parse().unwrap(),
            ],
            addresses: vec![
                format!("2001:db8::{number}").parse().unwrap(),
                format!("192.0.2.{number}").parse().unwrap(),
            ],
            key,
            invalid: Vec::new(),
        }
    }

    fn mesh(key: &PrivateKey, nodes: &[(&str, Node)]) -> Mesh {
        let nodes: Nodes = nodes
            .iter()
            .map(|(name, node)| ((*name).to_owned(), node.clone()))
            .collect();
        let peers = Peers::encrypted("own", &nodes);
        Mesh::of(&nodes["own"], (key.clone(), 51820), &peers).unwrap()
    }

    #[test]
    fn one_remote_has_the_networks_of_both_families() {
        let [key, other] = [(); 2].map(|()| PrivateKey::random().unwrap());
        let other = other.public();
        let mesh = mesh(&key, &[("own", node(1, None)), ("b", node(2, Some(other)))]);
        let remote = &mesh.remotes[&other];
        assert_eq!(remote.endpoint.to_string(), "192.0.2.2:51820");
        let networks = remote.networks.iter().map(ToString::to_string);
        assert_eq!(
            networks.collect::<Vec<_>>(),
            ["10.244.2.0/24", "fd00:2::/64"]
        );
        let addresses = mesh.addresses.iter().map(ToString::to_string);
        assert_eq!(addresses.collect::<Vec<_>>(), ["10.244.1.0", "fd00:1::"]);
        assert_eq!(mesh.overhead(), 60);
        let mut own = node(1, None);
        own.addresses.pop();
        let peers = Peers::default();
        assert_eq!(Mesh::of(&own, (key, 1), &peers).unwrap().overhead(), 80);
    }

    #[test]
    fn only_what_differs_changes() {
        let key = PrivateKey::random().unwrap();
        let [a, b, c] = [(); 3].map(|()| PrivateKey::random().unwrap().public());
        let nodes = [
            ("own", node(1, None)),
            ("a", node(2, Some(a))),
            ("b", node(3, Some(b))),
        ];
        let desired = mesh(&key, &nodes);
        let all = desired.remotes.iter();
        let mut found = Found {
            key: Some(key.public()),
            port: 51820,
            remotes: all.map(|(key, it)| (*key, Some(it.clone()))).collect(),
        };
        assert_eq!(Changes::between(&found, &desired).count(), 0);
        // The network of one node is now another node's.
        let moved = found.remotes[&a].clone();
        found.remotes.insert(c, moved);
        found.remotes.insert(a, None);
        let changes = Changes::between(&found, &desired);
        let expected = Changes {
            is_reset: false,
            set: vec![a],
            remove: vec![c],
        };
        assert_eq!(changes, expected);
        found.key = Some(c);
        let changes = Changes::between(&found, &desired);
        assert!(changes.is_reset && changes.set.len() == 2 && changes.remove.is_empty());
    }
}
