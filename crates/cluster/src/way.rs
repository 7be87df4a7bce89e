//! How packets reach the pods of other nodes.

use ipnetwork::IpNetwork;

use crate::mesh::Mesh;
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
    /// Through this WireGuard device; `None` while it is unknown what the device needs, so that one that
    /// exists stays as it is. Packets go no other way.
    WireGuard(Option<Box<Mesh>>),
}

impl Way {
    /// Returns why packets do not reach the network this way.
    pub(crate) fn unreachable(&self, network: IpNetwork, peer: &Peer) -> Problem {
        let node = peer.name.clone();
        match self {
            Self::Direct => Problem::Distant {
                node,
                address: peer.address,
            },
            Self::Vxlan(_) => Problem::NoTunnel { node, network },
            Self::WireGuard(_) => Problem::NoWireGuard { node, network },
        }
    }
}
