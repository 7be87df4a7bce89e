//! Why a node has no route to some pods.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// Why a node has no route to the pods of another one, or not the desired route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Problem {
    /// The other node has values that cannot be parsed.
    #[error("node {node}: {text:?} is no network or address, so it has no route")]
    Invalid {
        /// Name of the other node.
        node: String,
        /// The value.
        text: String,
    },
    /// The other node has no address of the family of its pods.
    #[error(
        "node {node} has no InternalIP of the family of its pod CIDR {network}, so this node has no \
         route to it; start the node's kubelet with --node-ip for both families"
    )]
    NoAddress {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
    },
    /// The network of the other node's pods contains addresses of something else.
    #[error(
        "pod CIDR {network} of node {node} overlaps {other}, so this node has no route to it; give \
         the node another pod CIDR"
    )]
    Overlap {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
        /// What has addresses in this network.
        other: String,
    },
    /// Packets to the other node pass a router, which knows no pods.
    #[error(
        "node {node} with the address {address} is in no network of this node, so this node has no \
         route to its pods; set mode to vxlan, or to none if the network routes them"
    )]
    Distant {
        /// Name of the other node.
        node: String,
        /// Address of the other node.
        address: IpAddr,
    },
    /// Another program made a route to the same network.
    #[error(
        "another program has made a route to {network}, the pods of node {node} (route protocol \
         {protocol}); end that program or delete its route"
    )]
    Foreign {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
        /// Number of the route's protocol, as in iproute2's `rt_protos`.
        protocol: u8,
    },
    /// This node has no VXLAN device of the family.
    #[error(
        "this node has no VXLAN device for {network}, the pods of node {node}; the device needs a pod \
         CIDR and an InternalIP of the same family on this node"
    )]
    NoTunnel {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
    },
    /// A VXLAN device cannot be made.
    #[error("no VXLAN device {device}: {reason}")]
    Device {
        /// Name of the device.
        device: String,
        /// Why not.
        reason: String,
    },
    /// The kernel refuses a neighbour or forwarding entry of a VXLAN device.
    #[error("the kernel refuses entries of {device}: {reason}")]
    Entries {
        /// Name of the device.
        device: String,
        /// The kernel's error.
        reason: String,
    },
    /// A device lacks its address.
    #[error(
        "the kernel refuses the address {address} of the tunnel, so its family does not pass it: {reason}"
    )]
    Address {
        /// The address.
        address: IpAddr,
        /// The kernel's error.
        reason: String,
    },
    /// The WireGuard device cannot be made.
    #[error("no WireGuard device cni-wg, so packets to pods of other nodes are dropped: {reason}")]
    WireGuard {
        /// Why not.
        reason: String,
    },
    /// This node has no WireGuard device.
    #[error(
        "this node has no WireGuard device for {network}, the pods of node {node}, so packets to it are \
         dropped"
    )]
    NoWireGuard {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
    },
    /// The other node has not announced a key that it has.
    #[error(
        "node {node} has announced no WireGuard key of its own, so packets to its pods are dropped; does \
         its agent run with the mode wireguard?"
    )]
    NoKey {
        /// Name of the other node.
        node: String,
    },
    /// Two nodes have announced the same key.
    #[error(
        "node {node} has the WireGuard key of node {other}, so packets to its pods are dropped until its \
         agent has replaced the key"
    )]
    SharedKey {
        /// Name of the node that has no route.
        node: String,
        /// Name of another node with the key.
        other: String,
    },
    /// The kernel refuses the route that keeps unencrypted packets on this node.
    #[error(
        "the kernel refuses an unreachable route to {network}, so packets may leave unencrypted: {reason}"
    )]
    Unrefused {
        /// The network of another node's pods.
        network: IpNetwork,
        /// The kernel's error.
        reason: String,
    },
    /// The kernel refuses one of the two routes to a node.
    #[error(
        "the kernel refuses one of the routes to {network}, the pods of node {node}, direct and by \
         VXLAN, so packets take the other one: {reason}"
    )]
    OneRefused {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
        /// The kernel's error.
        reason: String,
    },
    /// The kernel refuses the route.
    #[error("the kernel refuses a route to {network}, the pods of node {node}: {reason}")]
    Refused {
        /// Name of the other node.
        node: String,
        /// The network of its pods.
        network: IpNetwork,
        /// The kernel's error.
        reason: String,
    },
}

impl Problem {
    pub(crate) fn invalid(node: &str, text: &str) -> Self {
        Self::Invalid {
            node: node.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Returns whether another attempt may succeed without a change that
    /// [`crate::Changes`] or the API server reports.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Device { .. }
                | Self::Entries { .. }
                | Self::Address { .. }
                | Self::WireGuard { .. }
                | Self::Unrefused { .. }
                | Self::OneRefused { .. }
                | Self::Refused { .. }
                | Self::Foreign { .. }
        )
    }
}
