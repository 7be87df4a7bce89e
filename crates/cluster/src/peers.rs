//! The desired state: which node each network of pods belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::key::PublicKey;
use crate::node::{Node, Nodes};
use crate::problem::Problem;

/// The networks of the other nodes' pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The node of each network. No network overlaps another one or contains a node's address.
    pub networks: BTreeMap<IpNetwork, Peer>,
    /// Networks to which no packet may go unencrypted: those above, those of nodes that have no usable
    /// address or key, and this node's own. Empty without encryption.
    pub encrypted: BTreeSet<IpNetwork>,
    /// Why other networks are left out.
    pub problems: BTreeSet<Problem>,
}

/// A node with pods in a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Name of the node.
    pub name: String,
    /// Address of the node: of the network's family, or where it receives encrypted packets.
    pub address: IpAddr,
    /// The WireGuard key that the node has announced.
    pub key: Option<PublicKey>,
}

impl Peers {
    /// Returns the networks of all `nodes` but the one with the name `own`. Of networks that
    /// overlap, only one has a node: this node's own, otherwise that of the first name. A node whose
    /// address is in a network of pods has none, because packets to it would go astray.
    pub fn of(own: &str, nodes: &Nodes) -> Self {
        Self::through(own, nodes, Node::address_for)
    }

    /// The same with addresses of one family, that of [`Node::underlay`] of this node, and without
    /// nodes that have no key, or the key of another node.
    pub fn encrypted(own: &str, nodes: &Nodes) -> Self {
        let underlay = nodes.get(own).and_then(Node::underlay);
        let is_ipv4 = underlay.is_none_or(|it| it.is_ipv4());
        let mut peers = Self::through(own, nodes, |node, _| {
            let mut addresses = node.addresses.iter().copied();
            addresses.find(|it| it.is_ipv4() == is_ipv4)
        });
        peers.encrypted.extend(peers.networks.keys());
        // What another node sends to a pod that has left must not go on through the default route.
        let this = nodes.get(own).into_iter().flat_map(|it| &it.pod_cidrs);
        peers
            .encrypted
            .extend(this.map(|it| without_host_bits(*it)));
        let without_address = peers.problems.iter().filter_map(|it| match it {
            Problem::NoAddress { network, .. } => Some(*network),
            _ => None,
        });
        let addresses = nodes.values().flat_map(|it| &it.addresses);
        let is_free = |network: &IpNetwork| !addresses.clone().any(|it| network.contains(*it));
        peers.encrypted.extend(without_address.filter(is_free));
        peers.leave_out_nodes_without_own_key(own, nodes);
        peers
    }

    /// Of nodes with the same key, this node or the one of the first name has it.
    fn leave_out_nodes_without_own_key(&mut self, own: &str, nodes: &Nodes) {
        let this = nodes.get_key_value(own).into_iter();
        let mut holders = BTreeMap::new();
        for (name, node) in this.chain(nodes) {
            if let Some(key) = node.key {
                holders.entry(key).or_insert(name);
            }
        }
        let Self {
            networks, problems, ..
        } = self;
        networks.retain(|_, peer| {
            let node = peer.name.clone();
            let Some(key) = peer.key else {
                problems.insert(Problem::NoKey { node });
                return false;
            };
            let Some(holder) = holders.get(&key).filter(|it| ***it != node) else {
                return true;
            };
            let other = (*holder).clone();
            problems.insert(Problem::SharedKey { node, other });
            false
        });
    }

    fn through(
        own: &str,
        nodes: &Nodes,
        address_for: impl Fn(&Node, IpNetwork) -> Option<IpAddr>,
    ) -> Self {
        let mut peers = Self::default();
        let mut taken = Taken::default();
        let this = nodes.get(own).into_iter();
        taken
            .addresses
            .extend(this.clone().flat_map(|it| &it.addresses));
        for network in this.flat_map(|it| &it.pod_cidrs) {
            taken.networks.insert(network.network(), (*network, own));
        }
        for (name, node) in nodes.iter().filter(|(name, _)| *name != own) {
            let invalid = node.invalid.iter();
            peers
                .problems
                .extend(invalid.map(|it| Problem::invalid(name, it)));
            for cidr in &node.pod_cidrs {
                let (node_name, network) = (name.clone(), without_host_bits(*cidr));
                if let Some(other) = taken.overlap(network) {
                    let node = node_name;
                    peers.problems.insert(Problem::Overlap {
                        node,
                        network,
                        other,
                    });
                } else if let Some(address) = address_for(node, network) {
                    taken.networks.insert(network.network(), (network, name));
                    let peer = Peer {
                        name: node_name,
                        address,
                        key: node.key,
                    };
                    peers.networks.insert(network, peer);
                } else {
                    let node = node_name;
                    peers.problems.insert(Problem::NoAddress { node, network });
                }
            }
        }
        peers.leave_out_strange_addresses(&taken);
        peers
    }

    fn leave_out_strange_addresses(&mut self, taken: &Taken<'_>) {
        let Self {
            networks, problems, ..
        } = self;
        networks.retain(|network, peer| {
            let Some(other) = taken.network_around(peer.address) else {
                return true;
            };
            problems.insert(Problem::Overlap {
                node: peer.name.clone(),
                network: *network,
                other: format!("{other}, which has the node's address {}", peer.address),
            });
            false
        });
    }
}

/// What has addresses already.
#[derive(Default)]
struct Taken<'n> {
    /// This node's own addresses.
    addresses: BTreeSet<IpAddr>,
    /// Networks of pods by their first addresses, and their nodes. No two overlap.
    networks: BTreeMap<IpAddr, (IpNetwork, &'n str)>,
}

impl Taken<'_> {
    /// Returns what has an address in `network`.
    fn overlap(&self, network: IpNetwork) -> Option<String> {
        let (first, last) = (network.network(), network.broadcast());
        // No network begins between the beginning of one around this network and this network.
        if let Some(around) = self.network_around(first) {
            return Some(around);
        }
        if let Some((_, it)) = self.networks.range(first..=last).next() {
            return Some(words(*it));
        }
        let address = self.addresses.range(first..=last).next()?;
        Some(format!("the address {address} of this node"))
    }

    /// Returns the network of pods that has this address, in words.
    fn network_around(&self, address: IpAddr) -> Option<String> {
        let (_, it) = self.networks.range(..=address).next_back()?;
        it.0.contains(address).then(|| words(*it))
    }
}

fn words((network, node): (IpNetwork, &str)) -> String {
    format!("pod CIDR {network} of node {node}")
}

/// Returns the network with all bits of its address after the prefix set to 0.
fn without_host_bits(network: IpNetwork) -> IpNetwork {
    IpNetwork::new(network.network(), network.prefix()).unwrap_or(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(pod_cidrs: &[&str], addresses: &[&str]) -> Node {
        Node {
            pod_cidrs: pod_cidrs.iter().map(|it| it.parse().unwrap()).collect(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            key: None,
            invalid: Vec::new(),
        }
    }

    fn peers(nodes: &[(&str, Node)]) -> (Vec<String>, Vec<String>) {
        let nodes = nodes
            .iter()
            .map(|(name, node)| ((*name).to_owned(), node.clone()));
        let peers = Peers::of("own", &nodes.collect());
        let networks = peers.networks.iter();
        (
            networks
                .map(|(network, peer)| format!("{network} {} {}", peer.name, peer.address))
                .collect(),
            peers.problems.iter().map(ToString::to_string).collect(),
        )
    }

    #[test]
    fn each_network_has_the_address_of_its_family() {
        let (networks, problems) = peers(&[
            (
                "own",
                node(
                    &["10.244.0.0/24", "fd00:10::/64"],
                    &["192.0.2.1", "2001:db8::1"],
                ),
            ),
            (
                "b",
                node(
                    &["10.244.1.0/24", "fd00:10:0:1::/64"],
                    &["2001:db8::2", "192.0.2.2", "192.0.2.9"],
                ),
            ),
            ("c", node(&[], &["192.0.2.3"])),
            ("d", node(&["10.244.3.7/24"], &["192.0.2.4"])),
        ]);
        assert_eq!(
            networks,
            [
                "10.244.1.0/24 b 192.0.2.2",
                "10.244.3.0/24 d 192.0.2.4",
                "fd00:10:0:1::/64 b 2001:db8::2"
            ]
        );
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn network_without_address_of_its_family_is_left_out() {
        let (networks, problems) = peers(&[
            ("own", node(&["10.244.0.0/24"], &["192.0.2.1"])),
            (
                "b",
                node(&["10.244.1.0/24", "fd00:10:0:1::/64"], &["192.0.2.2"]),
            ),
        ]);
        assert_eq!(networks, ["10.244.1.0/24 b 192.0.2.2"]);
        assert!(
            problems[0].starts_with("node b has no InternalIP"),
            "{problems:?}"
        );
    }

    #[test]
    fn networks_that_overlap_something_are_left_out() {
        for (cidr, overlapped) in [
            ("10.244.0.0/24", "pod CIDR 10.244.0.0/24 of node own"),
            ("10.244.0.128/25", "pod CIDR 10.244.0.0/24 of node own"),
            ("10.244.0.0/16", "pod CIDR 10.244.0.0/24 of node own"),
            ("10.244.1.64/26", "pod CIDR 10.244.1.0/24 of node b"),
            ("10.244.1.0/24", "pod CIDR 10.244.1.0/24 of node b"),
            ("192.0.2.0/24", "the address 192.0.2.1 of this node"),
            (
                "192.0.2.8/29",
                "pod CIDR 192.0.2.8/29 of node z, which has the node's address",
            ),
            ("0.0.0.0/0", "pod CIDR 10.244.0.0/24 of node own"),
        ] {
            let (networks, problems) = peers(&[
                ("own", node(&["10.244.0.0/24"], &["192.0.2.1"])),
                ("b", node(&["10.244.1.0/24"], &["192.0.2.2"])),
                ("z", node(&[cidr], &["192.0.2.9"])),
            ]);
            assert_eq!(networks, ["10.244.1.0/24 b 192.0.2.2"], "{cidr}");
            assert!(problems[0].contains(overlapped), "{cidr}: {problems:?}");
        }
    }

    /// A kubelet may write its own addresses, so a node must not push others out by them.
    #[test]
    fn node_with_an_address_of_pods_leaves_others_alone() {
        let (networks, problems) = peers(&[
            ("a", node(&["10.244.3.0/24"], &["10.244.1.9"])),
            ("b", node(&["10.244.1.0/24"], &["192.0.2.2"])),
            ("own", node(&["10.244.0.0/24"], &["192.0.2.1"])),
        ]);
        assert_eq!(networks, ["10.244.1.0/24 b 192.0.2.2"]);
        assert!(problems[0].contains("10.244.1.9"), "{problems:?}");
    }

    fn with(number: u8, key: Option<PublicKey>) -> Node {
        let networks = [
            format!("10.244.{number}.0/24"),
            format!("fd00:{number}::/64"),
        ];
        let mut node = node(
            &networks.each_ref().map(String::as_str),
            &[&format!("192.0.2.{number}")],
        );
        node.key = key;
        node
    }

    #[test]
    fn only_nodes_with_a_key_of_their_own_are_reached() {
        let key = |byte: u8| Some(PublicKey([byte; 32]));
        let mut far = with(7, key(7));
        far.addresses = vec!["2001:db8::7".parse().unwrap()];
        let nodes = [
            ("own", with(1, key(1))),
            ("keyless", with(2, None)),
            ("copy", with(3, key(1))),
            ("good", with(4, key(4))),
            ("twin", with(5, key(5))),
            ("twin-2", with(6, key(5))),
            ("far", far),
        ];
        let nodes = nodes.map(|(name, node)| (name.to_owned(), node)).into();
        let peers = Peers::encrypted("own", &nodes);
        let reached = peers.networks.iter();
        let reached = reached.map(|(network, peer)| format!("{network} {}", peer.address));
        let good = [
            "10.244.4.0/24 192.0.2.4",
            "10.244.5.0/24 192.0.2.5",
            "fd00:4::/64 192.0.2.4",
            "fd00:5::/64 192.0.2.5",
        ];
        assert_eq!(reached.collect::<Vec<_>>(), good);
        assert_eq!(peers.encrypted.len(), 14, "{:?}", peers.encrypted);
        let problems = peers.problems.iter().map(ToString::to_string);
        let problems = problems.collect::<Vec<_>>().join("\n");
        for said in [
            "node keyless has announced no",
            "node copy has the WireGuard key of node own",
            "node twin-2 has the WireGuard key of node twin",
            "node far has no InternalIP",
        ] {
            assert!(problems.contains(said), "{said}: {problems}");
        }
    }

    #[test]
    fn nodes_without_this_one_have_routes_all_the_same() {
        let (networks, _) = peers(&[("b", node(&["10.244.1.0/24"], &["192.0.2.2"]))]);
        assert_eq!(networks, ["10.244.1.0/24 b 192.0.2.2"]);
    }
}
