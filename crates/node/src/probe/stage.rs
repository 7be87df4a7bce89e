//! The paths of the packets that are sent through a copy of the node's rules, and the links and
//! addresses on these paths.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink::{Link, LinkKind};
use nft::Protocol;

/// Source and destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// A packet of this protocol from a pod to another host.
    ToElsewhere(Protocol),
    /// A packet of this protocol from a pod to this port of the node, at the gateway's address.
    ToNode(Protocol, u16),
    /// A TCP packet from the node to a pod, like the kubelet's probes.
    FromNode,
    /// A packet from another host to this hostPort of the pod.
    ToHostPort(u16),
}

/// The links and addresses with which packets are sent through a copy of the node's rules.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The network's name.
    pub network: String,
    /// The link through which the node reaches the pod: a bridge, or the host's end of the pod's
    /// veth pair.
    pub access: Link,
    /// The link through which the node reaches other hosts.
    pub uplink: Link,
    /// Addresses of the links `access` and `uplink`, each after the index of its link.
    pub addresses: Vec<(u32, IpNetwork)>,
    /// The pod's gateway: an address of the node.
    pub gateway: IpAddr,
    /// The pod's address, with its prefix length.
    pub pod: IpNetwork,
    /// Configuration of the plugin `firewall`, if the network's list has that plugin. The copy then
    /// permits packets of the pod as this plugin does.
    pub permission: Option<firewall::Config>,
    /// A TCP hostPort, and the pod's port that it is forwarded to; `None` if the pod has no such
    /// hostPort.
    pub host_port: Option<(u16, u16)>,
    /// `bridge-nf-call-iptables` and `bridge-nf-call-ip6tables` with their values, if
    /// `br_netfilter` is loaded.
    pub bridge_calls: Vec<(String, String)>,
}

impl Stage {
    /// Returns whether the node reaches the pod without a bridge.
    pub fn is_routed(&self) -> bool {
        self.access.kind == LinkKind::Veth
    }
}
