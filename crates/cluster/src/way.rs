//! How packets reach the pods of other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::mesh::Mesh;
use crate::message::Route;
use crate::peers::Peer;
use crate::problem::Problem;
use crate::tunnel::Tunnel;

/// How packets reach the pods of other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Through the other node's address, which has to be in a network of this node.
    Direct,
    /// Through these VXLAN devices.
    Vxlan(Vec<Tunnel>),
    /// The same, but directly where packets of pods are known to pass.
    Auto(Vec<Tunnel>, BTreeSet<DirectRoute>),
    /// Through this WireGuard device; `None` while it is unknown what the device needs, so that one that
    /// exists stays as it is. Packets go no other way.
    WireGuard(Option<Box<Mesh>>),
}

/// A route to the pods of another node through that node's own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectRoute {
    /// The network of the other node's pods.
    pub network: IpNetwork,
    /// Address of the other node.
    pub gateway: IpAddr,
    /// Index of the link to the other node.
    pub link: u32,
}

impl DirectRoute {
    /// Returns the route to `network` if it is a direct one.
    pub(crate) fn of(network: IpNetwork, route: Route) -> Option<Self> {
        Some(Self {
            network,
            gateway: route.gateway.filter(|_| route.is_direct())?,
            link: route.link,
        })
    }

    pub(crate) fn route(self) -> Route {
        Route {
            gateway: Some(self.gateway),
            link: self.link,
            is_onlink: false,
            metric: None,
            source: None,
        }
    }
}

impl Way {
    /// Returns the VXLAN devices.
    pub fn tunnels(&self) -> &[Tunnel] {
        match self {
            Self::Vxlan(tunnels) | Self::Auto(tunnels, _) => tunnels,
            Self::Direct | Self::WireGuard(_) => &[],
        }
    }

    /// Returns why packets do not reach the network this way.
    pub(crate) fn unreachable(&self, network: IpNetwork, peer: &Peer) -> Problem {
        let node = peer.name.clone();
        match self {
            Self::Direct => Problem::Distant {
                node,
                address: peer.address,
            },
            Self::Vxlan(_) | Self::Auto(..) => Problem::NoTunnel { node, network },
            Self::WireGuard(_) => Problem::NoWireGuard { node, network },
        }
    }
}
