//! Description of an `nf_tables` table: its sets, and its chains, whose rules look packets up in
//! the sets.

use std::collections::HashSet;

use netlink::IpVersion;

use crate::Rule;
use crate::expression::sets_of;
use crate::register::padded;
use crate::rule_place::place;

/// Description of an `nf_tables` table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Family: the packets that the table sees.
    pub family: Family,
    /// Name. The caller chooses a name that no other program uses.
    pub name: &'static str,
    /// The table's sets and maps.
    pub sets: Vec<Set>,
    /// The table's chains.
    pub chains: Vec<Chain>,
}

/// Address family of a table: which packets the table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Frames on bridges.
    Bridge,
    /// IPv4 and IPv6.
    Inet,
    /// IPv4 packets. iptables uses tables of this family.
    Ipv4,
    /// IPv6 packets. ip6tables uses tables of this family.
    Ipv6,
}

/// A set or map in which rules look packets up.
#[derive(Debug, Clone)]
pub struct Set {
    /// The set's name.
    pub name: &'static str,
    /// Types of the key's parts, in order.
    pub key: Vec<Type>,
    /// Kind of the targets to which the set maps its keys.
    pub target: TargetType,
    /// Whether the elements are the ends of ranges ([`crate::ranges()`]).
    pub has_ranges: bool,
}

/// Kind of the targets of a set's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetType {
    /// No target: a plain set.
    None,
    /// A chain; nft(8) calls such a set a verdict map.
    Chain,
    /// Values of these types; nft(8) calls such a set a map.
    Values(Vec<Type>),
    /// Limits. A rule finds a packet's key in the set only if the packets with this key exceed the
    /// key's limit.
    Limit,
    /// Counts of elements in another set, which has this name. The count of a key is the number of
    /// elements in the other set whose keys end in this key. A transaction of this crate that
    /// changes these elements also changes the count. A key without such elements is absent, so no
    /// count is 0.
    Count(&'static str),
}

/// Type of a part of a set's key, or of the target to which a map maps a key. Only `nft list` uses
/// the type's number (`enum datatypes` in nftables, include/datatype.h); the kernel ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Name of a network link.
    InterfaceName = 41,
    /// A MAC address.
    EtherAddress = 9,
    /// An IPv4 address.
    Ipv4Address = 7,
    /// An IPv6 address.
    Ipv6Address = 8,
    /// The number of a transport protocol.
    Protocol = 12,
    /// A port of a transport protocol.
    Port = 13,
}

/// A list of rules that packets traverse in order.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The chain's name.
    pub name: String,
    /// The hook of a base chain. `None` for other chains: packets reach such a chain only from
    /// rules and map elements. [`crate::Connection::delete`] deletes such a chain with the last
    /// element that points to it.
    pub base: Option<BaseChain>,
    /// The chain's rules.
    pub rules: Vec<Rule>,
}

/// Kind, hook and priority of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// Kind of the chain.
    pub kind: ChainKind,
    /// Hook in the packet's path.
    pub hook: Hook,
    /// Position among the base chains of the hook; lower ones come first.
    pub priority: i32,
}

/// Kind of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Filters packets.
    Filter,
    /// Translates addresses; only the first packet of a connection traverses it.
    Nat,
}

/// A hook in a packet's path through the host. The numbers are `NF_INET_…`, and `NF_BR_…` has the
/// same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets that the host receives, before it routes or bridges them.
    Prerouting = 0,
    /// Packets to the host itself, after a translation of their destination.
    Input = 1,
    /// Packets that the host forwards.
    Forward = 2,
    /// Packets that the host itself sends.
    Output = 3,
    /// Packets that the host forwards or itself sends, before they leave.
    Postrouting = 4,
}

impl Family {
    /// Returns the number of the family: `NFPROTO_…`.
    pub(crate) fn number(self) -> u8 {
        self.facts().0
    }

    /// Returns the build option (`CONFIG_…`) without which the kernel has no tables of the family.
    pub(crate) fn option(self) -> &'static str {
        self.facts().1
    }

    /// Returns the further build option that the kernel needs for rules of the family, besides
    /// [`Self::option`]; `None` if it needs no further one.
    pub(crate) fn rule_option(self) -> Option<&'static str> {
        (self == Self::Bridge).then_some("CONFIG_NFT_BRIDGE_META")
    }

    /// Returns the family's name in nft(8).
    pub fn name(self) -> &'static str {
        self.facts().2
    }

    /// Returns the family's number (`NFPROTO_…`), build option, and name in nft(8).
    fn facts(self) -> (u8, &'static str, &'static str) {
        match self {
            Self::Inet => (1, "CONFIG_NF_TABLES_INET", "inet"),
            Self::Ipv4 => (2, "CONFIG_NF_TABLES_IPV4", "ip"),
            Self::Bridge => (7, "CONFIG_NF_TABLES_BRIDGE", "bridge"),
            Self::Ipv6 => (10, "CONFIG_NF_TABLES_IPV6", "ip6"),
        }
    }
}

impl Table {
    /// Describes a table of another program, without its sets and chains.
    pub(crate) fn of_others(family: Family, name: &'static str) -> Self {
        Self {
            family,
            name,
            sets: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// Returns the sets that no rule of this description uses, so that any process can delete them.
    /// Returns none if the table is described without its chains.
    pub(crate) fn unused_sets(&self) -> Vec<&Set> {
        if self.chains.is_empty() {
            return Vec::new();
        }
        let rules = self.chains.iter().flat_map(|it| &it.rules);
        let used: HashSet<_> = rules.flat_map(|it| sets_of(&it.expressions)).collect();
        let sets = self.sets.iter();
        sets.filter(|it| !used.contains(it.name)).collect()
    }
}

impl Set {
    /// Describes a set or map whose keys have parts of these types.
    pub fn new(name: &'static str, key: impl Into<Vec<Type>>, target: TargetType) -> Self {
        Self {
            name,
            key: key.into(),
            target,
            has_ranges: false,
        }
    }

    /// Describes a set of networks of this IP version ([`crate::ranges()`]).
    pub fn of_networks(name: &'static str, version: IpVersion) -> Self {
        let set = Self::new(name, [Type::address(version)], TargetType::None);
        Self {
            has_ranges: true,
            ..set
        }
    }

    /// Returns whether this is a set of counts ([`TargetType::Count`]).
    pub(crate) fn is_of_counts(&self) -> bool {
        matches!(self.target, TargetType::Count(_))
    }
}

impl Chain {
    /// Describes a base chain of type `filter`.
    pub fn filter(name: impl Into<String>, hook: Hook, priority: i32, rules: Vec<Rule>) -> Self {
        Self::regular(name, rules).at(ChainKind::Filter, hook, priority)
    }

    /// Describes a base chain of type `nat`.
    pub fn nat(name: impl Into<String>, hook: Hook, priority: i32, rules: Vec<Rule>) -> Self {
        Self::regular(name, rules).at(ChainKind::Nat, hook, priority)
    }

    /// Describes a chain that is no base chain.
    pub fn regular(name: impl Into<String>, rules: Vec<Rule>) -> Self {
        Self {
            name: name.into(),
            base: None,
            rules,
        }
    }

    fn at(self, kind: ChainKind, hook: Hook, priority: i32) -> Self {
        let base = Some(BaseChain {
            kind,
            hook,
            priority,
        });
        Self { base, ..self }
    }

    /// Returns the comments that identify the rules of this chain, in order ([`Rule::identity`]).
    pub(crate) fn identities(&self) -> impl Iterator<Item = String> {
        let (shape, count) = (self.shape(), self.rules.len());
        let rules = self.rules.iter().zip(1..);
        rules.map(move |(rule, number)| rule.identity(&shape, &place(number, count)))
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

impl Type {
    /// Returns the type of addresses of this IP version.
    pub fn address(version: IpVersion) -> Self {
        match version {
            IpVersion::V4 => Self::Ipv4Address,
            IpVersion::V6 => Self::Ipv6Address,
        }
    }

    /// Returns the length in bytes of a value of this type.
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

/// Returns the number of a key's or target's type: the numbers of its parts, joined as six bits
/// each.
pub(crate) fn type_number(parts: &[Type]) -> u32 {
    let join = |joined: u32, part: &Type| (joined << 6) | *part as u32;
    parts.iter().fold(0, join)
}

/// Returns the length in bytes of a key of these parts. If there are several parts, each one is
/// padded to a multiple of four bytes, the size of a register.
pub(crate) fn type_len(parts: &[Type]) -> usize {
    match parts {
        [only] => only.len(),
        parts => parts.iter().map(|part| padded(part.len())).sum(),
    }
}

/// Returns the user data of a set, from which `nft list` learns the byte order of the keys and, in
/// a set of counts, of the counts.
///
/// Each byte order is encoded as a type (`NFTNL_UDATA_SET_KEYBYTEORDER` or
/// `NFTNL_UDATA_SET_DATABYTEORDER`), a length, and an `enum byteorder` (nftables,
/// include/datatype.h). The `enum` itself is in the host's byte order.
pub(crate) fn byte_order(set: &Set) -> Vec<u8> {
    let order: u32 = match set.key.as_slice() {
        [Type::InterfaceName] => HOST_ENDIAN,
        [_] => BIG_ENDIAN,
        _ => 0,
    };
    let of_numbers = set.is_of_counts().then_some((1, HOST_ENDIAN));
    let orders = [(0, order)].into_iter().chain(of_numbers);
    orders
        .flat_map(|(kind, order)| [kind, 4].into_iter().chain(order.to_ne_bytes()))
        .collect()
}

/// Returns the name of the base chain that is deleted together with the chain `name`, although no
/// element points to it.
pub fn base_chain_of(name: &str) -> String {
    format!("{name}{BASE_SUFFIX}")
}

/// Returns the name of the chain whose [`base_chain_of`] is `name`; `None` if `name` is no name of
/// such a base chain.
pub fn chain_of_base(name: &str) -> Option<&str> {
    name.strip_suffix(BASE_SUFFIX)
}

const BASE_SUFFIX: &str = "-base";

const HOST_ENDIAN: u32 = 1;
const BIG_ENDIAN: u32 = 2;
