//! What of a packet can be looked at, and how it gets into a register.

use netlink_packet_netfilter::nftables::{Expressions, Meta, MetaKey, Payload, Register};

use crate::rule::u32_of;

/// Something of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// The name of the link that it came by; empty for what the host itself sends.
    InputName,
    /// The `EtherType` (IEEE 802.3), in network byte order.
    EtherType,
    /// The MAC that it is from.
    EtherSource,
    /// The IPv4 address that it is from; only to be asked of IPv4.
    Ipv4Source,
    /// The IPv6 address that it is from; only to be asked of IPv6.
    Ipv6Source,
    /// The IPv4 address that it goes to; only to be asked of IPv4.
    Ipv4Destination,
    /// The IPv6 address that it goes to; only to be asked of IPv6.
    Ipv6Destination,
    /// The number of its transport protocol.
    Protocol,
    /// The port that it goes to, in network byte order; only to be asked together with
    /// [`Self::Protocol`].
    DestinationPort,
    /// Its mark, in the byte order of this machine.
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

    /// In bytes.
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

/// So many bytes of the header at `base`.
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
