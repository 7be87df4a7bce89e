//! What the part `cluster` desires of its node, as a function of the nodes.

use cluster::{Mesh, Peers, Tunnel, Way};
use ipnetwork::IpNetwork;

use super::Part;
use super::config::Mode;
use super::key::Keys;

impl Part {
    /// Returns the desired routes.
    pub(super) fn desired(&self, keys: Option<&Keys>) -> (Peers, Way) {
        let nodes = &self.watched.nodes;
        let own = nodes.get(&self.node);
        let peers = Peers::of(&self.node, nodes);
        let vxlan = self.config.vxlan.unwrap_or_default();
        let tunnels = || {
            own.map(|it| Tunnel::of(&self.node, it, vxlan))
                .unwrap_or_default()
        };
        match self.config.mode {
            Mode::Direct => (peers, Way::Direct),
            Mode::Vxlan => (peers, Way::Vxlan(tunnels())),
            Mode::Auto => (peers, Way::Auto(tunnels(), self.proofs.proven.clone())),
            Mode::Wireguard => {
                let peers = Peers::encrypted(&self.node, nodes);
                let port = self.config.wireguard().port;
                let mesh = own.zip(keys);
                let mesh =
                    mesh.and_then(|(node, it)| Mesh::of(node, (it.own.clone(), port), &peers));
                (peers, Way::WireGuard(mesh.map(Box::new)))
            }
            Mode::None => (Peers::default(), Way::Direct),
        }
    }

    /// Returns why this node has no network for pods.
    pub(super) fn node_failure(&self) -> Option<String> {
        let name = &self.node;
        if self.watched.lacks_own {
            return Some(format!(
                "the API server lists no node {name}; set the key node to this node's name"
            ));
        }
        let own = self.watched.nodes.get(name);
        let own = own.filter(|_| self.watched.is_current)?;
        if own.pod_cidrs.is_empty() {
            return Some(format!(
                "node {name} has no podCIDR; start kube-controller-manager with \
                 --allocate-node-cidrs and --cluster-cidr"
            ));
        }
        let mut networks = own.pod_cidrs.iter();
        let has_address = |network: IpNetwork| match self.config.mode {
            Mode::Wireguard => !own.addresses.is_empty(),
            _ => own.address_for(network).is_some(),
        };
        let network = networks.find(|it| !has_address(**it))?;
        Some(format!(
            "node {name} has no InternalIP of the family of its pod CIDR {network}; start its kubelet \
             with --node-ip for both families"
        ))
    }
}
