//! Which part of a link's traffic a limit is for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Traffic, by the subnets at its far end: where it leaves by the limited link those it
/// comes from, where it arrives those it goes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Traffic {
    /// All of it.
    #[default]
    All,
    /// With these subnets, and no other.
    Only(Vec<IpNetwork>),
    /// With all but these subnets.
    AllBut(Vec<IpNetwork>),
}

/// What becomes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// They are limited.
    Limited,
    /// They are not.
    Free,
}

impl Traffic {
    /// The subnets that are told apart.
    pub(crate) fn subnets(&self) -> &[IpNetwork] {
        match self {
            Self::All => &[],
            Self::Only(subnets) | Self::AllBut(subnets) => subnets,
        }
    }

    /// What becomes of packets that arrive, by the subnet that they go to; the first that fits decides. All else is
    /// limited: what is of no version of IP, or bears the tag of a VLAN, may be anything.
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
