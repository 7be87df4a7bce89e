//! Fields of a packet, and the expressions that load them into a register.

use netlink_packet_netfilter::nftables::{Expressions, Meta, MetaKey, Payload, Register};

use crate::register::u32_of;

/// A field of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Name of the input link; empty for packets of the host itself.
    InputName,
    /// The `EtherType` (IEEE 802.3), in network byte order.
    EtherType,
    /// Source MAC.
    EtherSource,
    /// Source IPv4 address; valid for IPv4 packets only.
    Ipv4Source,
    /// Source IPv6 address; valid for IPv6 packets only.
    Ipv6Source,
    /// Destination IPv4 address; valid for IPv4 packets only.
    Ipv4Destination,
    /// Destination IPv6 address; valid for IPv6 packets only.
    Ipv6Destination,
    /// Number of the transport protocol.
    Protocol,
    /// Destination port, in network byte order; use it together with [`Self::Protocol`] only.
    DestinationPort,
    /// Mark, in this machine's byte order.
    Mark,
}

impl Field {
    pub(crate) fn load(self, register: Register) -> Expressions {
        match self {
            Self::InputName => meta(MetaKey::Iifname, register),
            Self::EtherType => meta(MetaKey::EtherTypeProtocol, register),
            Self::Protocol => meta(MetaKey::L4Proto, register),
            Self::Mark => meta(MetaKey::Mark, register),
            Self::EtherSource => payload(LINK_LAYER, 6, self.len(), register),
            Self::Ipv4Source => payload(NETWORK_LAYER, 12, self.len(), register),
            Self::Ipv4Destination => payload(NETWORK_LAYER, 16, self.len(), register),
            Self::Ipv6Source => payload(NETWORK_LAYER, 8, self.len(), register),
            Self::Ipv6Destination => payload(NETWORK_LAYER, 24, self.len(), register),
            Self::DestinationPort => payload(TRANSPORT_LAYER, 2, self.len(), register),
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::EtherType | Self::DestinationPort => 2,
            Self::Ipv4Source | Self::Ipv4Destination | Self::Mark => 4,
            Self::EtherSource => 6,
            Self::InputName | Self::Ipv6Source | Self::Ipv6Destination => 16,
        }
    }
}

pub(crate) fn meta(key: MetaKey, register: Register) -> Expressions {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(register)])
}

/// Loads `len` bytes at `offset` of the header at `base`.
fn payload(base: u32, offset: u32, len: usize, register: Register) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(register),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(u32_of(len)),
    ])
}

/// `NFT_PAYLOAD_LL_HEADER`, `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`
const LINK_LAYER: u32 = 0;
const NETWORK_LAYER: u32 = 1;
const TRANSPORT_LAYER: u32 = 2;
