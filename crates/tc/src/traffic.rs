//! The part of a link's traffic that a limit applies to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Traffic by the subnets at its far end: sources for a limit at the link's egress, destinations
/// for one at its ingress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Traffic {
    /// All of it.
    #[default]
    All,
    /// Traffic with these subnets.
    Only(Vec<IpNetwork>),
    /// Traffic with all but these subnets.
    AllBut(Vec<IpNetwork>),
}

/// Treatment of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// They are limited.
    Limited,
    /// They are not.
    Free,
}

impl Traffic {
    /// Returns the listed subnets.
    pub(crate) fn subnets(&self) -> &[IpNetwork] {
        match self {
            Self::All => &[],
            Self::Only(subnets) | Self::AllBut(subnets) => subnets,
        }
    }

    /// Returns the treatment of ingress packets by their destination; the first matching subnet
    /// decides. All other packets are limited: those of other protocols and those with a VLAN tag
    /// may contain anything.
    pub fn cases(&self) -> Vec<(IpNetwork, Case)> {
        let case = match self {
            Self::All | Self::AllBut(_) => Case::Free,
            Self::Only(_) => Case::Limited,
        };
        let everywhere = [
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::from(Ipv6Addr::UNSPECIFIED),
        ];
        let everywhere = everywhere
            .into_iter()
            .filter(|_| matches!(self, Self::Only(_)))
            .filter_map(|it| IpNetwork::new(it, 0).ok());
        let subnets = self.subnets().iter().map(|it| (*it, case));
        subnets
            .chain(everywhere.map(|it| (it, Case::Free)))
            .collect()
    }
}
