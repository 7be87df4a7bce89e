//! Rules: conditions on a packet, and an action.

use ipnetwork::IpNetwork;
use netlink_packet_core::Emitable as _;
use netlink_packet_netfilter::nftables::{
    ChainAttribute, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute,
    Lookup, MetaKey, Operator, Register, Verdict, VerdictAttribute,
};
use sha2::{Digest as _, Sha256};

use crate::expression::{self, LOCAL, SourcePort, TRANSLATED, compare, masked};
use crate::field::{Field, meta};
use crate::ip_version::IpVersion;
use crate::register::{padded, u32_of};

/// Conditions that must all hold, and an action.
#[derive(Debug, Clone)]
pub struct Rule {
    comment: &'static str,
    expressions: Vec<Expressions>,
}

impl Rule {
    /// Creates a rule without conditions and action; `comment` is for readers of the ruleset.
    pub fn new(comment: &'static str) -> Self {
        Self {
            comment,
            expressions: Vec::new(),
        }
    }

    /// Matches if `field` equals `value`, in network byte order.
    pub fn when(self, field: Field, value: &[u8]) -> Self {
        self.compared(field, Operator::Equal, value)
    }

    /// Matches if `field` differs from `value`, in network byte order.
    pub fn unless(self, field: Field, value: &[u8]) -> Self {
        self.compared(field, Operator::NotEqual, value)
    }

    /// Matches packets of this IP version; for tables of family `inet`.
    pub fn when_ip(self, version: IpVersion) -> Self {
        self.with(meta(MetaKey::Nfproto, SCRATCH)).with(compare(
            SCRATCH,
            Operator::Equal,
            &[version.number()],
        ))
    }

    /// Matches packets to an address in `network`; for tables of family `inet`.
    pub fn when_to(self, network: IpNetwork) -> Self {
        self.in_network(destination(network), Operator::Equal, network)
    }

    /// Matches packets to an address in `network`; for tables of any family. Packets too short for
    /// an address do not match.
    pub fn when_frame_to(self, network: IpNetwork) -> Self {
        let version: &[u8] = match network {
            IpNetwork::V4(_) => &ETHERTYPE_V4,
            IpNetwork::V6(_) => &ETHERTYPE_V6,
        };
        self.when(Field::EtherType, version)
            .within(destination(network), Operator::Equal, network)
    }

    /// Matches packets of the IP version of `network` to addresses outside it; for tables of family
    /// `inet`.
    pub fn unless_to(self, network: IpNetwork) -> Self {
        self.in_network(destination(network), Operator::NotEqual, network)
    }

    /// Matches packets from an address in `network`; for tables of family `inet`.
    pub fn when_from(self, network: IpNetwork) -> Self {
        self.in_network(source(network), Operator::Equal, network)
    }

    /// Matches packets of the IP version of `network` from addresses outside it; for tables of
    /// family `inet`.
    pub fn unless_from(self, network: IpNetwork) -> Self {
        self.in_network(source(network), Operator::NotEqual, network)
    }

    /// Matches packets to an address of this host: `fib daddr type local`.
    pub fn when_to_host(self) -> Self {
        self.with(expression::destination_type(SCRATCH))
            .with(compare(SCRATCH, Operator::Equal, &LOCAL.to_ne_bytes()))
    }

    /// Matches packets of connections with a translated destination: `ct status dnat`.
    pub fn when_translated(self) -> Self {
        self.with(expression::connection_status(SCRATCH))
            .with(masked(SCRATCH, TRANSLATED.to_ne_bytes().to_vec()))
            .with(compare(SCRATCH, Operator::NotEqual, &[0; 4]))
    }

    /// Matches if the set contains the key of `fields`.
    pub fn when_in(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, None)
    }

    /// Matches if the set does not contain the key of `fields`.
    pub fn when_not_in(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, Some(Lookup::Flags(INVERTED)))
    }

    /// Continues in the chain that the key of `fields` points to; does not match without such a
    /// key.
    pub fn goto_by(self, fields: &[Field], set: &'static str) -> Self {
        let to = Lookup::DestinationRegister(Register::Verdict);
        self.lookup(fields, set, Some(to))
    }

    /// Translates (DNAT) the connection to the address and port that the key of `fields` maps to,
    /// of IP version `version`. Does not match without such a key.
    pub fn dnat_by(self, version: IpVersion, fields: &[Field], set: &'static str) -> Self {
        let [address, port] = match version {
            IpVersion::V4 => [FIRST_REGISTER, FIRST_REGISTER + 1],
            IpVersion::V6 => [FIRST_REGISTER, FIRST_REGISTER + 4],
        };
        let to = Lookup::DestinationRegister(Register::Other(address));
        let [address, port] = [address, port].map(Register::Other);
        self.lookup(fields, set, Some(to))
            .with(expression::translate(version, address, port))
    }

    /// Continues in the chain of this name.
    pub fn goto(self, chain: &str) -> Self {
        self.verdict(vec![
            VerdictAttribute::Code(Verdict::Goto),
            VerdictAttribute::Chain(chain.to_owned()),
        ])
    }

    /// Drops the packet.
    pub fn drop(self) -> Self {
        self.verdict(vec![VerdictAttribute::Code(Verdict::Other(DROP))])
    }

    /// Returns from the chain.
    pub fn return_to_caller(self) -> Self {
        self.verdict(vec![VerdictAttribute::Code(Verdict::Return)])
    }

    /// Masquerades the connection: its source becomes the host's address on the output link.
    pub fn masquerade(self, port: SourcePort) -> Self {
        self.with(expression::masquerade(port))
    }

    fn verdict(self, verdict: Vec<VerdictAttribute>) -> Self {
        self.with(Expressions::Immediate(vec![
            Immediate::DestinationRegister(Register::Verdict),
            Immediate::Data(DataAttribute::Verdict(verdict)),
        ]))
    }

    fn with(mut self, expression: Expressions) -> Self {
        self.expressions.push(expression);
        self
    }

    fn compared(self, field: Field, operator: Operator, value: &[u8]) -> Self {
        self.with(field.load(SCRATCH))
            .with(compare(SCRATCH, operator, value))
    }

    fn in_network(self, field: Field, operator: Operator, network: IpNetwork) -> Self {
        let version = IpVersion::of(network.network());
        self.when_ip(version).within(field, operator, network)
    }

    fn within(self, field: Field, operator: Operator, network: IpNetwork) -> Self {
        let (prefix, mask) = match network {
            IpNetwork::V4(it) => {
                let [prefix, mask] = [it.network(), it.mask()].map(|it| it.octets().to_vec());
                (prefix, mask)
            }
            IpNetwork::V6(it) => {
                let [prefix, mask] = [it.network(), it.mask()].map(|it| it.octets().to_vec());
                (prefix, mask)
            }
        };
        let mut rule = self.with(field.load(SCRATCH));
        if mask.iter().any(|byte| *byte != u8::MAX) {
            rule = rule.with(masked(SCRATCH, mask));
        }
        rule.with(compare(SCRATCH, operator, &prefix))
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

    /// Returns the build options that the kernel needs for the expressions.
    pub(crate) fn needs(&self) -> impl Iterator<Item = &'static str> {
        self.expressions.iter().filter_map(expression::option_for)
    }

    /// Returns the comment and a digest of the expressions and the chain's shape. An existing rule
    /// is compared with the wanted one by this text.
    pub(crate) fn identity(&self, shape: &[ChainAttribute]) -> String {
        let expressions = self.expressions();
        let expressions = expressions.as_slice();
        let mut bytes = vec![0; shape.buffer_len() + expressions.buffer_len()];
        let (first, second) = bytes.split_at_mut(shape.buffer_len());
        shape.emit(first);
        expressions.emit(second);
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

fn source(network: IpNetwork) -> Field {
    match network {
        IpNetwork::V4(_) => Field::Ipv4Source,
        IpNetwork::V6(_) => Field::Ipv6Source,
    }
}

fn destination(network: IpNetwork) -> Field {
    match network {
        IpNetwork::V4(_) => Field::Ipv4Destination,
        IpNetwork::V6(_) => Field::Ipv6Destination,
    }
}

/// Register for comparisons with a single value.
const SCRATCH: Register = Register::Reg1;

/// `NFT_REG32_00`, the first of sixteen registers of four bytes.
const FIRST_REGISTER: u32 = 8;

const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];

/// `NFT_LOOKUP_F_INV`
const INVERTED: u32 = 1;

/// `NF_DROP`
const DROP: u32 = 0;
