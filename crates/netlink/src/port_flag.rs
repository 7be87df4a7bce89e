//! Flags of bridge ports.

use netlink_packet_route::link::InfoBridgePort;

/// A flag of a bridge port. The kernel creates ports with these flags off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum PortFlag {
    /// Frames may leave through the port through which they arrived. Equivalent to `bridge link set
    /// dev … hairpin on`.
    #[display("hairpin mode")]
    Hairpin,
    /// The port exchanges frames only with ports that are not isolated and with the bridge itself.
    /// Equivalent to `bridge link set dev … isolated on`.
    #[display("isolation")]
    Isolated,
}

impl PortFlag {
    /// All flags.
    pub const ALL: [Self; 2] = [Self::Hairpin, Self::Isolated];

    /// Returns the attribute that turns the flag on.
    pub(crate) fn attribute(self) -> InfoBridgePort {
        match self {
            Self::Hairpin => InfoBridgePort::HairpinMode(true),
            Self::Isolated => InfoBridgePort::Isolated(true),
        }
    }

    /// Returns words for error messages about the request that turns the flag on.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Hairpin => "set hairpin mode of port",
            Self::Isolated => "isolate port",
        }
    }
}
