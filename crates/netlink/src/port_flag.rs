//! Flags of bridge ports.

use std::fmt;

use netlink_packet_route::link::InfoBridgePort;

/// A flag of a bridge port. The kernel creates ports with these flags off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortFlag {
    /// Frames may leave through the port through which they arrived. Equivalent to `bridge link set
    /// dev … hairpin on`.
    Hairpin,
    /// The port exchanges frames only with ports that are not isolated and with the bridge itself.
    /// Equivalent to `bridge link set dev … isolated on`.
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

impl fmt::Display for PortFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hairpin => "hairpin mode",
            Self::Isolated => "isolation",
        })
    }
}
