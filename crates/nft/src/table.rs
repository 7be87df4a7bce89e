//! A table as it shall be: its sets, and the chains that look packets up in them.

use netlink_packet_netfilter::NetfilterProtoFamily;
use netlink_packet_netfilter::nftables::InetHookNumber;

use crate::rule::Rule;

/// A table of ours.
#[derive(Debug, Clone)]
pub struct Table {
    /// Which packets it sees.
    pub family: Family,
    /// Its name, which nobody else uses.
    pub name: &'static str,
    /// Its sets and maps.
    pub sets: Vec<Set>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// Which packets a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Frames on bridges.
    Bridge,
    /// IPv4 and IPv6.
    Inet,
    /// IPv4: the tables of iptables.
    Ipv4,
    /// IPv6: the tables of ip6tables.
    Ipv6,
}

/// Keys that packets are looked up by.
#[derive(Debug, Clone)]
pub struct Set {
    /// Its name.
    pub name: &'static str,
    /// What its keys consist of, in this order.
    pub key: Vec<Type>,
    /// What a key leads to.
    pub target: TargetType,
}

/// What the keys of a set lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetType {
    /// Nothing: they are in the set or not.
    None,
    /// A chain; nft(8) calls it a verdict map.
    Chain,
    /// Values of these types; nft(8) calls it a map.
    Values(Vec<Type>),
    /// Limits: only packets above the limit of their key count as being in the set.
    Limit,
}

/// What a part of a key, or of what it leads to, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Type {
    /// The name of a link.
    InterfaceName,
    /// A MAC.
    EtherAddress,
    /// An IPv4 address.
    Ipv4Address,
    /// An IPv6 address.
    Ipv6Address,
    /// The number of a transport protocol.
    Protocol,
    /// A port of a transport protocol.
    Port,
}

/// Rules that packets pass one after another.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Where packets enter it by themselves; `None`: only rules and keys of a set lead to it,
    /// and when the last of such keys goes, it goes with it.
    pub entry: Option<Entry>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// Where packets enter a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What its rules may do.
    pub kind: ChainKind,
    /// The moment in a packet's way.
    pub hook: Hook,
    /// Its place among others there: the lowest comes first.
    pub priority: i32,
}

/// What the rules of a chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainKind {
    /// Let packets pass or not.
    Filter,
    /// Translate addresses; only the first packet of a connection passes it.
    Nat,
}

/// A moment in a packet's way through the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hook {
    /// As it arrives.
    Prerouting,
    /// As the host itself sends it.
    Output,
    /// As it leaves.
    Postrouting,
}

impl Family {
    pub(crate) fn protocol(self) -> NetfilterProtoFamily {
        match self {
            Self::Bridge => NetfilterProtoFamily::Bridge,
            Self::Inet => NetfilterProtoFamily::Inet,
            Self::Ipv4 => NetfilterProtoFamily::IPv4,
            Self::Ipv6 => NetfilterProtoFamily::IPv6,
        }
    }

    /// Without which a kernel does not know it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Bridge => "CONFIG_NF_TABLES_BRIDGE",
            Self::Inet => "CONFIG_NF_TABLES_INET",
            Self::Ipv4 => "CONFIG_NF_TABLES_IPV4",
            Self::Ipv6 => "CONFIG_NF_TABLES_IPV6",
        }
    }

    /// Without which a kernel that knows it may lack `meta` in its rules.
    pub(crate) fn rule_option(self) -> Option<&'static str> {
        (self == Self::Bridge).then_some("CONFIG_NFT_BRIDGE_META")
    }

    /// The word for it in nft(8).
    pub fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Inet => "inet",
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
        }
    }
}

impl Chain {
    /// What tells its rules from others, and the same rules elsewhere.
    pub(crate) fn identities(&self) -> impl Iterator<Item = String> {
        let shape = self.shape();
        self.rules.iter().map(move |rule| rule.identity(&shape))
    }
}

impl ChainKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl Hook {
    pub(crate) fn number(self) -> InetHookNumber {
        match self {
            Self::Prerouting => InetHookNumber::PreRouting,
            Self::Output => InetHookNumber::LocalOut,
            Self::Postrouting => InetHookNumber::PostRouting,
        }
    }
}

impl Type {
    /// The number by which nft(8) knows it, for what `nft list` shows; the kernel does not
    /// look at it (`enum datatypes` in nftables, include/datatype.h).
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Ipv4Address => 7,
            Self::Ipv6Address => 8,
            Self::EtherAddress => 9,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::InterfaceName => 41,
        }
    }

    /// In bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Ipv4Address => 4,
            Self::EtherAddress => 6,
            Self::InterfaceName | Self::Ipv6Address => 16,
        }
    }
}

/// The number of a concatenation has six bits for each part.
pub(crate) fn type_number(parts: &[Type]) -> u32 {
    let join = |joined: u32, part: &Type| (joined << 6) | part.number();
    parts.iter().fold(0, join)
}

/// In bytes: parts of a concatenation fill registers of four.
pub(crate) fn type_len(parts: &[Type]) -> usize {
    match parts {
        [only] => only.len(),
        parts => parts.iter().map(|part| padded(part.len())).sum(),
    }
}

/// How nft(8) has to read a key to show it: type, length and a number in the host's order
/// (`NFTNL_UDATA_SET_KEYBYTEORDER`, and `enum byteorder` in nftables, include/datatype.h).
pub(crate) fn byte_order(parts: &[Type]) -> Vec<u8> {
    let order: u32 = match parts {
        [Type::InterfaceName] => 1,
        [_] => 2,
        _ => 0,
    };
    [0, 4].into_iter().chain(order.to_ne_bytes()).collect()
}

/// Registers have four bytes.
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}
