//! Fields of a packet, and the expressions that load them into a register.

use netlink::IpVersion;

use crate::expression::Expression;
use crate::register::{Register, SCRATCH, u32_of};

/// A field of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Name of the link that received the packet; empty for packets that the host itself sends.
    InputName,
    /// Name of the link that sends the packet; empty for packets to the host itself, and before the
    /// kernel has chosen a route.
    OutputName,
    /// The `EtherType` (IEEE 802.3), in network byte order.
    EtherType,
    /// Source MAC.
    EtherSource,
    /// Source address; valid only for packets of this IP version.
    Source(IpVersion),
    /// Destination address; valid only for packets of this IP version.
    Destination(IpVersion),
    /// Number of the transport protocol.
    Protocol,
    /// Destination port, in network byte order. A rule must also compare [`Self::Protocol`],
    /// because a protocol without ports has other data at this position.
    DestinationPort,
    /// Firewall mark of the packet (`fwmark`), in this machine's byte order.
    Mark,
}

/// Where a rule finds a field of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the packet's metadata, under this key: `NFT_META_…`.
    Meta(u32),
    /// In this header of the packet (`NFT_PAYLOAD_…`), at this offset in bytes.
    Header(u32, u32),
}

impl Field {
    /// Returns the expression that loads the field into `register`.
    pub(crate) fn load(self, register: Register) -> Expression {
        self.load_start(register, self.len())
    }

    /// Returns the expression that loads the first `length` bytes of the field into `register`.
    /// Loads metadata as a whole.
    pub(crate) fn load_start(self, register: Register, length: usize) -> Expression {
        match self.place() {
            Place::Meta(key) => meta(key, register),
            Place::Header(base, offset) => {
                // NFTA_PAYLOAD_DREG, …_BASE, …_OFFSET and …_LEN.
                let length = u32_of(length);
                let numbers = [(1, register), (2, base), (3, offset), (4, length)];
                Expression::of_numbers("payload", &numbers)
            }
        }
    }

    /// Returns where the kernel finds the field in a packet.
    pub(crate) fn place(self) -> Place {
        match self {
            Self::EtherType => Place::Meta(META_PROTOCOL),
            Self::Mark => Place::Meta(META_MARK),
            Self::InputName => Place::Meta(META_INPUT_NAME),
            Self::OutputName => Place::Meta(META_OUTPUT_NAME),
            Self::Protocol => Place::Meta(META_TRANSPORT),
            Self::EtherSource => Place::Header(LINK_LAYER, 6),
            Self::Source(IpVersion::V4) => Place::Header(NETWORK_LAYER, 12),
            Self::Destination(IpVersion::V4) => Place::Header(NETWORK_LAYER, 16),
            Self::Source(IpVersion::V6) => Place::Header(NETWORK_LAYER, 8),
            Self::Destination(IpVersion::V6) => Place::Header(NETWORK_LAYER, 24),
            Self::DestinationPort => Place::Header(TRANSPORT_LAYER, 2),
        }
    }

    /// Returns the length of the field in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::EtherType | Self::DestinationPort => 2,
            Self::Mark | Self::Source(IpVersion::V4) | Self::Destination(IpVersion::V4) => 4,
            Self::EtherSource => 6,
            Self::InputName | Self::OutputName | Self::Source(_) | Self::Destination(_) => 16,
        }
    }
}

/// Returns `meta nfproto`: an expression that loads the packet's IP version into the register
/// [`SCRATCH`].
pub(crate) fn load_version() -> Expression {
    meta(META_VERSION, SCRATCH)
}

/// Returns an expression that sets a property of the packet to the value in the register
/// [`SCRATCH`]. `key` is [`META_MARK`] or [`META_TRACE`].
pub(crate) fn set_meta(key: u32) -> Expression {
    // NFTA_META_SREG.
    Expression::of_numbers("meta", &[(META_KEY, key), (3, SCRATCH)])
}

fn meta(key: u32, register: Register) -> Expression {
    // NFTA_META_DREG.
    Expression::of_numbers("meta", &[(META_KEY, key), (1, register)])
}

/// In this order: `NFTA_PAYLOAD_BASE` and `NFTA_PAYLOAD_OFFSET`.
pub(crate) const PAYLOAD_BASE: u16 = 2;
pub(crate) const PAYLOAD_OFFSET: u16 = 3;

/// `NFTA_META_KEY`
pub(crate) const META_KEY: u16 = 2;

/// Keys of `meta`, in this order: `NFT_META_PROTOCOL`, `…_MARK`, `…_IIFNAME`, `…_OIFNAME`,
/// `…_NFTRACE`, `…_NFPROTO` and `…_L4PROTO`.
const META_PROTOCOL: u32 = 1;
pub(crate) const META_MARK: u32 = 3;
const META_INPUT_NAME: u32 = 6;
const META_OUTPUT_NAME: u32 = 7;
pub(crate) const META_TRACE: u32 = 12;
const META_VERSION: u32 = 15;
const META_TRANSPORT: u32 = 16;

/// Headers of a packet, in this order: `NFT_PAYLOAD_LL_HEADER`, `NFT_PAYLOAD_NETWORK_HEADER` and
/// `NFT_PAYLOAD_TRANSPORT_HEADER`.
const LINK_LAYER: u32 = 0;
const NETWORK_LAYER: u32 = 1;
const TRANSPORT_LAYER: u32 = 2;
