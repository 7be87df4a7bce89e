//! Which part of a link's traffic a limit is for.

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

impl Traffic {
    /// The subnets that are told apart.
    pub(crate) fn subnets(&self) -> &[IpNetwork] {
        match self {
            Self::All => &[],
            Self::Only(subnets) | Self::AllBut(subnets) => subnets,
        }
    }
}
