//! Rules: what of a packet is compared with what, and what becomes of it then.

use ipnetwork::IpNetwork;
use netlink_packet_core::{DefaultNla, Emitable as _};
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute,
    Lookup, Meta, MetaKey, Operator, Payload, Register, Verdict, VerdictAttribute,
};
use sha2::{Digest as _, Sha256};

use crate::table::padded;

/// Something of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// The name of the link that it came by.
    InputName,
    /// The `EtherType` (IEEE 802.3), in network byte order.
    EtherType,
    /// The MAC that it is from.
    EtherSource,
    /// The IPv4 address that it is from; only to be asked of IPv4.
    Ipv4Source,
    /// The IPv6 address that it is from; only to be asked of IPv6.
    Ipv6Source,
}

/// A version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// How masquerading chooses the port that a connection leaves by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePort {
    /// The one that it has, where that is free.
    Kept,
    /// A random one: two packets at once never choose the same, which would cost one of them
    /// (`insert_failed`).
    FullyRandom,
}

/// A rule: conditions that all have to hold, and what happens then.
#[derive(Debug, Clone)]
pub struct Rule {
    comment: &'static str,
    expressions: Vec<Expressions>,
}

impl Rule {
    /// A rule without condition that does nothing yet; `comment` is what people read of it.
    pub fn new(comment: &'static str) -> Self {
        Self {
            comment,
            expressions: Vec::new(),
        }
    }

    /// `field` has this value, in network byte order.
    pub fn when(self, field: Field, value: &[u8]) -> Self {
        self.with(field.load(SCRATCH)).equals(value)
    }

    /// It is a packet of this version: for tables of family `inet`.
    pub fn when_ip(self, version: IpVersion) -> Self {
        let number = match version {
            IpVersion::V4 => NFPROTO_IPV4,
            IpVersion::V6 => NFPROTO_IPV6,
        };
        self.with(meta(MetaKey::Nfproto, SCRATCH)).equals(&[number])
    }

    /// It goes to an address in `network`: for tables of family `inet`.
    pub fn when_to(self, network: IpNetwork) -> Self {
        let (version, offset, prefix, mask) = match network {
            IpNetwork::V4(it) => {
                let [prefix, mask] = [it.network(), it.mask()].map(|it| it.octets().to_vec());
                (IpVersion::V4, 16, prefix, mask)
            }
            IpNetwork::V6(it) => {
                let [prefix, mask] = [it.network(), it.mask()].map(|it| it.octets().to_vec());
                (IpVersion::V6, 24, prefix, mask)
            }
        };
        let rule = self.when_ip(version).with(payload(
            NETWORK_LAYER,
            offset..offset + prefix.len(),
            SCRATCH,
        ));
        if mask.iter().all(|byte| *byte == u8::MAX) {
            return rule.equals(&prefix);
        }
        rule.with(Expressions::Bitwise(vec![
            Bitwise::SourceRegister(SCRATCH),
            Bitwise::DestinationRegister(SCRATCH),
            Bitwise::Length(u32_of(mask.len())),
            Bitwise::Xor(DataAttribute::Value(vec![0; mask.len()])),
            Bitwise::Mask(DataAttribute::Value(mask)),
        ]))
        .equals(&prefix)
    }

    /// The key that `fields` make is in the set.
    pub fn when_in(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, None)
    }

    /// The key that `fields` make is not in the set.
    pub fn when_not_in(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, Some(Lookup::Flags(INVERTED)))
    }

    /// The packet goes on in the chain that the key leads to, if the set has the key that
    /// `fields` make.
    pub fn goto_by(self, fields: &[Field], set: &'static str) -> Self {
        let to = Lookup::DestinationRegister(Register::Verdict);
        self.lookup(fields, set, Some(to))
    }

    /// The packet goes no further.
    pub fn drop(self) -> Self {
        self.verdict(Verdict::Other(DROP))
    }

    /// The packet leaves the chain.
    pub fn leave(self) -> Self {
        self.verdict(Verdict::Return)
    }

    /// The packet, and all of its connection, is from the host's address on the link that it
    /// leaves by.
    pub fn masquerade(self, port: SourcePort) -> Self {
        let flags = match port {
            SourcePort::Kept => None,
            SourcePort::FullyRandom => Some(RANDOM_FULLY.to_be_bytes().to_vec()),
        };
        let flags = flags.map(|it| DefaultNla::new(MASQUERADE_FLAGS, it));
        self.with(Expressions::Other {
            expression_type: "masq".to_owned(),
            attributes: flags.into_iter().collect(),
        })
    }

    fn verdict(self, verdict: Verdict) -> Self {
        let verdict = VerdictAttribute::Code(verdict);
        self.with(Expressions::Immediate(vec![
            Immediate::DestinationRegister(Register::Verdict),
            Immediate::Data(DataAttribute::Verdict(vec![verdict])),
        ]))
    }

    fn with(mut self, expression: Expressions) -> Self {
        self.expressions.push(expression);
        self
    }

    fn equals(self, value: &[u8]) -> Self {
        self.with(Expressions::Cmp(vec![
            Cmp::SourceRegister(SCRATCH),
            Cmp::Op(Operator::Equal),
            Cmp::Data(DataAttribute::Value(value.to_vec())),
        ]))
    }

    fn lookup(mut self, fields: &[Field], set: &str, how: Option<Lookup>) -> Self {
        let mut register = FIRST_REGISTER;
        for field in fields {
            self = self.with(field.load(Register::Other(register)));
            register += u32_of(padded(field.len()) / 4);
        }
        let mut lookup = vec![
            Lookup::Set(set.to_owned()),
            Lookup::SourceRegister(Register::Other(FIRST_REGISTER)),
        ];
        lookup.extend(how);
        self.with(Expressions::Lookup(lookup))
    }

    /// The option without which a kernel does not know some expression.
    pub(crate) fn needs(&self) -> Option<&'static str> {
        let is_masquerade = |expression: &Expressions| matches!(expression, Expressions::Other { expression_type, .. } if expression_type == "masq");
        let masquerades = self.expressions.iter().any(is_masquerade);
        masquerades.then_some("CONFIG_NFT_MASQ")
    }

    /// The comment and a digest of what it does, by which a rule that is there is compared with
    /// one that shall be.
    pub(crate) fn identity(&self) -> String {
        let expressions = self.expressions();
        let mut bytes = vec![0; expressions.as_slice().buffer_len()];
        expressions.as_slice().emit(&mut bytes);
        let digest = Sha256::digest(&bytes);
        let digest: Vec<_> = digest
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{} [{}]", self.comment, digest.concat())
    }

    pub(crate) fn expressions(&self) -> Vec<ListAttribute<ExpressionAttribute>> {
        self.expressions.iter().cloned().map(Into::into).collect()
    }
}

impl Field {
    fn load(self, register: Register) -> Expressions {
        match self {
            Self::InputName => meta(MetaKey::Iifname, register),
            Self::EtherType => meta(MetaKey::EtherTypeProtocol, register),
            Self::EtherSource => payload(LINK_LAYER, 6..12, register),
            Self::Ipv4Source => payload(NETWORK_LAYER, 12..16, register),
            Self::Ipv6Source => payload(NETWORK_LAYER, 8..24, register),
        }
    }

    /// In bytes.
    fn len(self) -> usize {
        match self {
            Self::EtherType => 2,
            Self::Ipv4Source => 4,
            Self::EtherSource => 6,
            Self::InputName | Self::Ipv6Source => 16,
        }
    }
}

fn meta(key: MetaKey, register: Register) -> Expressions {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(register)])
}

/// `bytes` of the header at `base`.
fn payload(base: u32, bytes: std::ops::Range<usize>, register: Register) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(register),
        Payload::Base(base),
        Payload::Offset(u32_of(bytes.start)),
        Payload::Len(u32_of(bytes.len())),
    ])
}

/// None of what is counted here comes near the limit.
fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// What is compared with one value at once passes through here.
const SCRATCH: Register = Register::Reg1;

/// `NFT_REG32_00`, the first of sixteen registers of four bytes.
const FIRST_REGISTER: u32 = 8;

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;

/// `NFT_LOOKUP_F_INV`
const INVERTED: u32 = 1;

/// `NF_DROP`
const DROP: u32 = 0;

/// `NFT_PAYLOAD_LL_HEADER` and `NFT_PAYLOAD_NETWORK_HEADER`
const LINK_LAYER: u32 = 0;
const NETWORK_LAYER: u32 = 1;

/// `NFTA_MASQ_FLAGS`
const MASQUERADE_FLAGS: u16 = 1;

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
const RANDOM_FULLY: u32 = 1 << 4;
