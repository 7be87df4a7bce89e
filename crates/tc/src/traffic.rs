//! The part of a link's traffic that a limit applies to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Traffic of the host's link to a container, selected by the subnets of the container's peers. An
/// egress packet of the link comes from a peer, and an ingress packet of the link goes to a peer.
/// So a limit at the egress compares source addresses with the subnets, and a limit at the ingress
/// compares destination addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Traffic {
    /// All traffic.
    #[default]
    All,
    /// Traffic with peers in these subnets.
    Only(Vec<IpNetwork>),
    /// Traffic with all peers outside these subnets.
    AllBut(Vec<IpNetwork>),
}

/// Whether a limit applies to packets that match a subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// The packets are limited.
    Limited,
    /// The packets are not limited.
    Free,
}

impl Traffic {
    /// Returns the listed subnets; none for [`Self::All`].
    pub(crate) fn subnets(&self) -> &[IpNetwork] {
        match self {
            Self::All => &[],
            Self::Only(subnets) | Self::AllBut(subnets) => subnets,
        }
    }

    /// Returns the subnets with which a limit at a link's ingress compares destination addresses.
    /// The first matching subnet decides whether the limit applies. Packets that match none of the
    /// returned subnets are limited. Packets that are not IP match no subnet. For the filters of
    /// this crate, packets with a VLAN tag match no subnet, either.
    pub fn cases(&self) -> Vec<(IpNetwork, Case)> {
        const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let (case, everywhere) = match self {
            Self::All | Self::AllBut(_) => (Case::Free, None),
            Self::Only(_) => (Case::Limited, Some([V4, V6])),
        };
        let subnets = self.subnets().iter().map(|it| (*it, case));
        let rest = everywhere.into_iter().flatten();
        let rest = rest.filter_map(|it| IpNetwork::new(it, 0).ok());
        subnets.chain(rest.map(|it| (it, Case::Free))).collect()
    }
}
