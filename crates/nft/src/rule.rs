//! Rules: conditions on a packet, and an action.

use ipnetwork::IpNetwork;
use netlink::{IpVersion, octets};
use sha2::{Digest as _, Sha256};

use crate::attributes::Attributes;
use crate::expression::{
    self, ACCEPT, CONNECTED, CT_STATE, CT_STATUS, Expression, GOTO, INVALID, JUMP, LOCAL, Lookup,
    to_chain, verdict,
};
use crate::field::{META_MARK, META_TRACE, load_version, set_meta};
use crate::raw::ITEM;
use crate::register::{FIRST, SCRATCH, VERDICT, padded, u32_of};
use crate::tracked::DESTINATION_TRANSLATED;
use crate::{Field, Operator, SourcePort};

/// A rule: conditions that a packet has to satisfy, and an action. Each method that starts with
/// `when` or `unless` adds a condition. The rule matches if all conditions are satisfied.
#[derive(Debug, Clone)]
pub struct Rule {
    comment: &'static str,
    pub(crate) expressions: Attributes,
    /// Build options of the kernel (`CONFIG_…`) that the expressions need.
    pub(crate) needs: Vec<&'static str>,
}

/// [`Field::Source`] or [`Field::Destination`], as a function that returns the field for an IP
/// version.
pub type Side = fn(IpVersion) -> Field;

impl Rule {
    /// Creates a rule without conditions and action. `comment` explains the rule to readers of
    /// `nft list ruleset`.
    pub fn new(comment: &'static str) -> Self {
        Self {
            comment,
            expressions: Attributes::new(),
            needs: Vec::new(),
        }
    }

    /// Matches packets whose `field` equals `value`. The caller encodes `value` in the byte order
    /// of the field ([`Field`]).
    pub fn when(self, field: Field, value: &[u8]) -> Self {
        self.compared(field, Operator::Equal, value)
    }

    /// Matches packets whose `field` differs from `value`. The caller encodes `value` in the byte
    /// order of the field ([`Field`]).
    pub fn unless(self, field: Field, value: &[u8]) -> Self {
        self.compared(field, Operator::NotEqual, value)
    }

    /// Matches packets whose `field` equals `value` or differs from it. The caller encodes `value` in
    /// the byte order of the field ([`Field`]).
    pub fn compared(self, field: Field, operator: Operator, value: &[u8]) -> Self {
        self.with(&field.load(SCRATCH)).compare(operator, value)
    }

    /// Matches packets whose `field` is in a range from the first to the last value
    /// ([`Operator::Equal`]) or outside it. Both values are in network byte order.
    pub fn ranged(self, field: Field, operator: Operator, range: (&[u8], &[u8])) -> Self {
        let loaded = self.with(&field.load(SCRATCH));
        let loaded = match field {
            Field::Mark => loaded.with(&expression::to_network_order()),
            _ => loaded,
        };
        loaded.with(&expression::range(operator, range))
    }

    /// Matches packets that have the IP version of `network`, and whose address is in `network`
    /// ([`Operator::Equal`]) or outside it; for tables of family `inet`. `side` is [`Field::Source`]
    /// or [`Field::Destination`].
    pub fn in_network(self, side: Side, operator: Operator, network: IpNetwork) -> Self {
        let version = IpVersion::of(network.network());
        self.when_ip(version).within(side, operator, network)
    }

    /// Matches packets of this IP version; for tables of family `inet`.
    pub fn when_ip(self, version: IpVersion) -> Self {
        self.with(&load_version())
            .compare(Operator::Equal, &[version.number()])
    }

    /// Matches packets whose destination address is in `network`; for tables of family `inet`.
    pub fn when_to(self, network: IpNetwork) -> Self {
        self.in_network(Field::Destination, Operator::Equal, network)
    }

    /// Matches packets to an address in `network`; for tables of any family, including `bridge`.
    /// Packets that are too short to contain the network's part of an address do not match.
    pub fn when_frame_to(self, network: IpNetwork) -> Self {
        self.when_frame_of(IpVersion::of(network.network())).within(
            Field::Destination,
            Operator::Equal,
            network,
        )
    }

    /// Continues for frames whose `EtherType` is that of this IP version. For tables of the family
    /// `bridge`.
    pub fn when_frame_of(self, version: IpVersion) -> Self {
        let ethertype: u16 = match version {
            IpVersion::V4 => 0x0800,
            IpVersion::V6 => 0x86dd,
        };
        self.when(Field::EtherType, &ethertype.to_be_bytes())
    }

    /// Matches packets from an address in `network`; for tables of family `inet`.
    pub fn when_from(self, network: IpNetwork) -> Self {
        self.in_network(Field::Source, Operator::Equal, network)
    }

    /// Matches packets to an address of this host: `fib daddr type local`.
    pub fn when_to_host(self) -> Self {
        self.with(&expression::destination_type())
            .compare(Operator::Equal, &LOCAL.to_ne_bytes())
    }

    /// Matches packets that arrive through another link than the one through which the host would
    /// send packets to their source: `fib saddr . iif oif missing`.
    pub fn when_source_is_elsewhere(self) -> Self {
        self.with(&expression::link_to_source())
            .compare(Operator::Equal, &[0; 4])
    }

    /// Matches packets of connections with a translated destination: `ct status dnat`.
    pub fn when_translated(self) -> Self {
        self.when_connection_has(CT_STATUS, DESTINATION_TRANSLATED)
    }

    /// Matches packets of connections that were answered, and packets related to another
    /// connection: `ct state established,related`.
    pub fn when_connected(self) -> Self {
        self.when_connection_has(CT_STATE, CONNECTED)
    }

    /// Matches all packets except those that conntrack can assign to no connection: `ct state !
    /// invalid`.
    pub fn unless_invalid(self) -> Self {
        self.with(&expression::connection(CT_STATE))
            .masked(&INVALID.to_ne_bytes())
            .compare(Operator::Equal, &[0; 4])
    }

    /// Matches packets whose firewall mark has all of these bits.
    pub fn when_marked(self, bits: u32) -> Self {
        self.with(&Field::Mark.load(SCRATCH))
            .masked(&bits.to_ne_bytes())
            .compare(Operator::Equal, &bits.to_ne_bytes())
    }

    /// Matches if the set contains the key that the packet's `fields` form.
    pub fn when_in(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, Lookup::Match)
    }

    /// Matches if the set does not contain the key that the packet's `fields` form.
    pub fn when_not_in(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, Lookup::Inverted)
    }

    /// Sends the packet to the chain to which the set maps the packet's `fields`. A packet whose
    /// fields are not a key of the set does not match the rule.
    pub fn goto_by(self, fields: &[Field], set: &'static str) -> Self {
        self.lookup(fields, set, Lookup::Load(VERDICT))
    }

    /// Translates (DNAT) the connection to the address and port to which the set maps the packet's
    /// `fields`. The address has IP version `version`. A packet whose fields are not a key of the
    /// set does not match the rule.
    pub fn dnat_by(self, version: IpVersion, fields: &[Field], set: &'static str) -> Self {
        let [address, port] = match version {
            IpVersion::V4 => [FIRST, FIRST + 1],
            IpVersion::V6 => [FIRST, FIRST + 4],
        };
        self.lookup(fields, set, Lookup::Load(address))
            .with(&expression::translate(version, address, port))
    }

    /// Sends the packet to the chain of this name. Unlike after [`Self::jump`], the packet never
    /// returns to the rule after this one.
    pub fn goto(self, chain: &str) -> Self {
        self.end(&to_chain(GOTO, chain))
    }

    /// Sends the packet to the chain of this name. If that chain does not decide about the packet,
    /// the packet continues with the rule after this one.
    pub fn jump(self, chain: &str) -> Self {
        self.end(&to_chain(JUMP, chain))
    }

    /// Accepts the packet in its current base chain: skips all further rules of this base chain and
    /// of the chains that it jumps to. Other base chains of the hook can still drop the packet.
    pub fn accept(self) -> Self {
        self.end(&verdict(ACCEPT))
    }

    /// Counts the packets that reach this point of the rule.
    pub fn counted(self) -> Self {
        self.with(&Expression::of_numbers("counter", &[]))
    }

    /// Sets these bits of the packet's firewall mark.
    pub fn mark(self, bits: u32) -> Self {
        self.set_mark(!bits, bits)
    }

    /// Clears these bits of the packet's firewall mark.
    pub fn unmark(self, bits: u32) -> Self {
        self.set_mark(!bits, 0)
    }

    /// Drops the packet.
    pub fn drop(self) -> Self {
        self.end(&verdict(DROP))
    }

    /// Ends this chain for the packet, which continues with the rule after the jump to this chain.
    /// In a base chain, the chain's policy decides about the packet.
    pub fn return_to_caller(self) -> Self {
        self.end(&verdict(RETURN))
    }

    /// Masquerades the connection: its source becomes the host's address on the output link.
    pub fn masquerade(self, port: SourcePort) -> Self {
        self.with(&expression::masquerade(port))
    }

    /// Sets the packet's trace mark, so that the kernel reports each rule that the packet matches:
    /// `meta nftrace set 1`.
    pub(crate) fn traced(self) -> Self {
        self.with(&expression::immediate(SCRATCH, &expression::value(&[1])))
            .with(&set_meta(META_TRACE))
    }

    /// Matches if a property of the packet's connection has at least one of these bits. `key` is
    /// the property: [`CT_STATE`] or [`CT_STATUS`].
    fn when_connection_has(self, key: u32, bits: u32) -> Self {
        self.with(&expression::connection(key))
            .masked(&bits.to_ne_bytes())
            .compare(Operator::NotEqual, &[0; 4])
    }

    /// Replaces the packet's firewall mark: keeps the bits in `kept`, then flips the bits in
    /// `flipped`.
    fn set_mark(self, kept: u32, flipped: u32) -> Self {
        let [kept, flipped] = [kept, flipped].map(u32::to_ne_bytes);
        self.with(&Field::Mark.load(SCRATCH))
            .with(&expression::changed(&kept, &flipped))
            .with(&set_meta(META_MARK))
    }

    fn end(self, verdict: &Attributes) -> Self {
        self.with(&expression::immediate(VERDICT, verdict))
    }

    /// Changes the value in the register [`SCRATCH`]: keeps the bits that are set in `mask`, and
    /// clears all others.
    fn masked(self, mask: &[u8]) -> Self {
        self.with(&expression::changed(mask, &vec![0; mask.len()]))
    }

    fn compare(self, operator: Operator, value: &[u8]) -> Self {
        self.with(&expression::compare(operator, value))
    }

    pub(crate) fn with(mut self, expression: &Expression) -> Self {
        self.needs.extend(expression.option());
        Self {
            expressions: self.expressions.nest(ITEM, &expression.encode()),
            ..self
        }
    }

    /// Compares the packet's source or destination address (`side`) with `network`. The caller adds
    /// the condition on the packet's IP version.
    pub fn within(self, side: Side, operator: Operator, network: IpNetwork) -> Self {
        let field = side(IpVersion::of(network.network()));
        let [prefix, mask] = [network.network(), network.mask()].map(octets);
        match whole_bytes(network) {
            // Less work than a mask, and what nft(8) does, too.
            Some(length) => self
                .with(&field.load_start(SCRATCH, length))
                .compare(operator, prefix.get(..length).unwrap_or(&prefix)),
            None => self
                .with(&field.load(SCRATCH))
                .masked(&mask)
                .compare(operator, &prefix),
        }
    }

    fn lookup(mut self, fields: &[Field], set: &str, how: Lookup) -> Self {
        let mut register = FIRST;
        for field in fields {
            self = self.with(&field.load(register));
            register += u32_of(padded(field.len()) / 4);
        }
        self.with(&expression::lookup(set, how))
    }

    /// Returns the comment that the kernel stores with the rule: the rule's own text, a digest, and
    /// the rule's place in its chain, as in `comment [7f39dbf6 2/5]`. The digest is computed from
    /// `shape` (the chain's hook, priority and type) and the rule's expressions. So if an existing
    /// rule has this comment, it also has these expressions.
    pub(crate) fn identity(&self, shape: &[u8], place: &str) -> String {
        let digest = Sha256::new().chain_update(shape);
        let digest = digest.chain_update(&*self.expressions).finalize();
        let [a, b, c, d, ..]: [u8; 32] = digest.into();
        format!("{} [{a:02x}{b:02x}{c:02x}{d:02x}{place}", self.comment)
    }
}

/// Returns the length of the network's prefix in bytes; `None` if it is zero or no whole number.
fn whole_bytes(network: IpNetwork) -> Option<usize> {
    let bits = usize::from(network.prefix());
    (bits > 0 && bits % 8 == 0).then_some(bits / 8)
}

/// The verdict `drop`: `NF_DROP`.
const DROP: u32 = 0;

/// The verdict `return`: `NFT_RETURN`.
const RETURN: u32 = 5_u32.wrapping_neg();
