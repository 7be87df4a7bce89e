//! The WireGuard device of a node, which encrypts packets to the pods of all other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

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
    pub remotes: BTreeMap<PublicKey, FoundRemote>,
}

/// Another node as the kernel knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FoundRemote {
    /// Where the kernel sends packets: the address from which the node's last one came.
    pub endpoint: Option<SocketAddr>,
    pub networks: BTreeSet<IpNetwork>,
    /// Number of bytes that the kernel has sent to it.
    pub sent: u64,
    /// Time since the last handshake.
    pub age: Duration,
}

impl FoundRemote {
    /// Returns whether the node has not answered at its endpoint: after [`REJECT_AFTER`], packets to it,
    /// those after the `sent_before`, need another handshake.
    fn is_silent(&self, sent_before: u64) -> bool {
        self.age > REJECT_AFTER && self.sent > sent_before
    }
}

/// The endpoints that an agent has set, and the bytes that the kernel had sent then.
pub(crate) type Endpoints = BTreeMap<PublicKey, (SocketAddr, u64)>;

/// What a device needs in order to become the desired one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Whether the kernel has to forget all other nodes first, because its key or port is another
    /// one. Each node that it gets afterwards begins a new session at once.
    pub is_reset: bool,
    /// What changes of other nodes, or of new ones.
    pub set: Vec<(PublicKey, Change)>,
    /// Other nodes to remove.
    pub remove: Vec<PublicKey>,
}

/// What changes of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub endpoint: bool,
    pub networks: bool,
}

impl Changes {
    /// Compares the device with the desired one. The kernel follows a node that sends from another
    /// address. So an endpoint changes only if it is another one than those `set` before, or if the node
    /// does not answer there.
    pub fn between(found: &Found, desired: &Mesh, set: &Endpoints) -> Self {
        let is_reset = found.key != Some(desired.key.public()) || found.port != desired.port;
        let unknown = FoundRemote::default();
        let change = |(key, remote): (&PublicKey, &Remote)| {
            let found = found.remotes.get(key).filter(|_| !is_reset);
            let found = found.unwrap_or(&unknown);
            let is_set = |(endpoint, sent): &(SocketAddr, u64)| {
                *endpoint == remote.endpoint && !found.is_silent(*sent)
            };
            let is_followed = found.endpoint.is_some() && set.get(key).is_some_and(is_set);
            let change = Change {
                endpoint: found.endpoint != Some(remote.endpoint) && !is_followed,
                networks: found.networks != remote.networks,
            };
            (change.endpoint || change.networks).then_some((*key, change))
        };
        let changes = desired.remotes.iter().filter_map(change).collect();
        let others = found.remotes.keys();
        let remove = others.filter(|it| !is_reset && !desired.remotes.contains_key(it));
        Self {
            is_reset,
            set: changes,
            remove: remove.copied().collect(),
        }
    }

    /// Returns the number of changes.
    pub fn count(&self) -> usize {
        usize::from(self.is_reset) + self.set.len() + self.remove.len()
    }
}

/// Time after which the kernel uses no session any more: `REJECT_AFTER_TIME` of WireGuard.
const REJECT_AFTER: Duration = Duration::from_mins(3);

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
            remotes: all.map(|(key, it)| (*key, known(it))).collect(),
        };
        let none = Endpoints::new();
        assert_eq!(Changes::between(&found, &desired, &none).count(), 0);
        // The network of one node is now another node's.
        let moved = std::mem::take(found.remotes.get_mut(&a).unwrap());
        found.remotes.insert(c, moved);
        let changes = Changes::between(&found, &desired, &none);
        let expected = Changes {
            is_reset: false,
            set: vec![(a, ALL)],
            remove: vec![c],
        };
        assert_eq!(changes, expected);
        found.key = Some(c);
        let changes = Changes::between(&found, &desired, &none);
        assert!(changes.is_reset && changes.remove.is_empty());
        assert_eq!(changes.set.len(), 2);
        assert!(changes.set.iter().all(|it| it.1 == ALL));
    }

    #[test]
    fn endpoint_that_the_kernel_follows_stays() {
        let [key, other] = [(); 2].map(|()| PrivateKey::random().unwrap());
        let b = other.public();
        let desired = mesh(&key, &[("own", node(1, None)), ("b", node(2, Some(b)))]);
        let mut found = Found {
            key: Some(key.public()),
            port: 51820,
            remotes: [(b, known(&desired.remotes[&b]))].into(),
        };
        let remote = found.remotes.get_mut(&b).unwrap();
        remote.endpoint = Some("203.0.113.1:7".parse().unwrap());
        let mut set = Endpoints::new();
        let changes = Changes::between(&found, &desired, &set).set;
        let endpoint = Change {
            networks: false,
            ..ALL
        };
        assert_eq!(changes, [(b, endpoint)]);
        set.insert(b, (desired.remotes[&b].endpoint, 100));
        for (age, sent, is_kept) in [(179, 101, true), (181, 100, true), (181, 101, false)] {
            let remote = found.remotes.get_mut(&b).unwrap();
            (remote.age, remote.sent) = (Duration::from_secs(age), sent);
            let set = Changes::between(&found, &desired, &set).set;
            assert_eq!(set.is_empty(), is_kept, "{age} {sent}");
        }
        found.remotes.get_mut(&b).unwrap().age = Duration::ZERO;
        found.remotes.get_mut(&b).unwrap().networks.clear();
        let networks = Change {
            endpoint: false,
            ..ALL
        };
        let changes = Changes::between(&found, &desired, &set).set;
        assert_eq!(changes, [(b, networks)]);
        set.insert(b, ("192.0.2.9:51820".parse().unwrap(), 100));
        assert_eq!(Changes::between(&found, &desired, &set).set, [(b, ALL)]);
    }

    const ALL: Change = Change {
        endpoint: true,
        networks: true,
    };

    fn known(remote: &Remote) -> FoundRemote {
        FoundRemote {
            endpoint: Some(remote.endpoint),
            networks: remote.networks.clone(),
            ..FoundRemote::default()
        }
    }
}
