//! Expressions of rules, with the numbers of `include/uapi/linux/netfilter/nf_tables.h`.

use netlink::IpVersion;

use crate::attributes::{self, Attributes, attributes, number, text};
use crate::register::{FIRST, Register, SCRATCH, u32_of};

/// How masquerading chooses the source port of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePort {
    /// The client's port if it is free, otherwise another free port.
    Kept,
    /// A random port. If two simultaneous connections get the same port, the kernel drops a packet
    /// of one of them (`insert_failed`). Random ports make this rare.
    FullyRandom,
}

/// An expression of a rule or of a set.
pub(crate) struct Expression {
    name: &'static str,
    data: Attributes,
}

impl Expression {
    pub fn new(name: &'static str, data: Attributes) -> Self {
        Self { name, data }
    }

    /// Creates an expression whose attributes are all numbers. `numbers` has the type and value of
    /// each attribute.
    pub fn of_numbers(name: &'static str, numbers: &[(u16, u32)]) -> Self {
        let data = numbers.iter();
        let data = data.fold(Attributes::new(), |all, (kind, it)| all.number(*kind, *it));
        Self::new(name, data)
    }

    fn nest(self, kind: u16, parts: &Attributes) -> Self {
        Self::new(self.name, self.data.nest(kind, parts))
    }

    pub fn encode(&self) -> Attributes {
        Attributes::new()
            .text(NAME, self.name)
            .nest(DATA, &self.data)
    }

    /// Returns the build option that the kernel needs for an expression `ct`, `fib`, `masq` or
    /// `nat`; `None` for other expressions.
    pub fn option(&self) -> Option<&'static str> {
        match self.name {
            "ct" => Some("CONFIG_NFT_CT"),
            "fib" => Some("CONFIG_NFT_FIB_INET"),
            "masq" => Some("CONFIG_NFT_MASQ"),
            "nat" => Some("CONFIG_NFT_NAT"),
            _ => None,
        }
    }
}

/// Splits the expressions of a rule. Returns the name and the encoded attributes of each
/// expression.
pub(crate) fn parts(expressions: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    attributes(expressions).map(|it| {
        let name = text(attributes::value(it.value, NAME).unwrap_or_default());
        (name, attributes::value(it.value, DATA).unwrap_or_default())
    })
}

/// Returns the names of the sets in which the expressions of a rule look keys up.
pub(crate) fn sets_of(expressions: &[u8]) -> impl Iterator<Item = String> {
    let lookups = parts(expressions).filter(|(name, _)| name == "lookup");
    lookups.filter_map(|(_, data)| attributes::value(data, LOOKUP_SET).map(text))
}

/// Returns the value that a register must equal for the expression `cmp` to match; `None` if `cmp`
/// compares in another way.
pub(crate) fn compared(cmp: &[u8]) -> Option<&[u8]> {
    let operator = number(attributes::value(cmp, COMPARE_OPERATOR));
    let data = attributes::value(cmp, COMPARE_DATA)?;
    attributes::value(data, DATA_VALUE).filter(|_| operator == Operator::Equal as u64)
}

/// Returns the encoded verdict (its code and chain) that the expression `immediate` loads; `None`
/// if it loads a value.
pub(crate) fn verdict_of(immediate: &[u8]) -> Option<&[u8]> {
    attributes::value(attributes::value(immediate, IMMEDIATE_DATA)?, DATA_VERDICT)
}

/// How a rule compares a register with a value: `NFT_CMP_EQ` and `NFT_CMP_NEQ`.
#[derive(Debug, Clone, Copy)]
pub enum Operator {
    /// The value is the same.
    Equal = 0,
    /// The value is another one.
    NotEqual = 1,
}

/// Effect of a rule's look-up of a key in a set.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lookup {
    /// The rule matches if the set contains the key.
    Match,
    /// The rule matches if the set does not contain the key.
    Inverted,
    /// The rule matches if the set contains the key, and loads the key's target into this register.
    Load(Register),
}

/// Returns `fib daddr type`: an expression that loads the type of the packet's destination address,
/// such as [`LOCAL`], into the register [`SCRATCH`].
pub(crate) fn destination_type() -> Expression {
    // NFTA_FIB_DREG, …_RESULT and …_FLAGS.
    let numbers = [(1, SCRATCH), (2, FIB_ADDRESS_TYPE), (3, FIB_DESTINATION)];
    Expression::of_numbers("fib", &numbers)
}

/// Returns `fib saddr . iif oif`: an expression that loads the index of the link through which
/// packets to the packet's source leave into the register [`SCRATCH`]; 0 if this is not the link
/// that received the packet.
pub(crate) fn link_to_source() -> Expression {
    let numbers = [(1, SCRATCH), (2, FIB_LINK), (3, FIB_SOURCE_AND_INPUT)];
    Expression::of_numbers("fib", &numbers)
}

/// Returns an expression that loads a property of the packet's connection into the register
/// [`SCRATCH`]. `key` is [`CT_STATE`] or [`CT_STATUS`].
pub(crate) fn connection(key: u32) -> Expression {
    // NFTA_CT_DREG and NFTA_CT_KEY.
    Expression::of_numbers("ct", &[(1, SCRATCH), (2, key)])
}

/// Returns an expression that translates the connection's destination (DNAT) to the address in the
/// register `address` and the port in the register `port`.
pub(crate) fn translate(version: IpVersion, address: Register, port: Register) -> Expression {
    let family = version.number().into();
    // NFTA_NAT_TYPE, …_FAMILY, …_REG_ADDR_MIN and …_REG_PROTO_MIN.
    let numbers = [(1, NAT_DESTINATION), (2, family), (3, address), (5, port)];
    Expression::of_numbers("nat", &numbers)
}

pub(crate) fn masquerade(port: SourcePort) -> Expression {
    let is_random = port == SourcePort::FullyRandom;
    // NFTA_MASQ_FLAGS.
    let flags = is_random.then_some((1, RANDOM_FULLY));
    Expression::of_numbers("masq", flags.as_slice())
}

/// Returns an expression that changes the value in the register [`SCRATCH`]: keeps the bits that
/// are set in `mask`, then flips the bits that are set in `flipped`. The caller guarantees that
/// `mask` and `flipped` are as long as the value.
pub(crate) fn changed(mask: &[u8], flipped: &[u8]) -> Expression {
    // NFTA_BITWISE_SREG, …_DREG and …_LEN.
    let numbers = [(1, SCRATCH), (2, SCRATCH), (3, u32_of(mask.len()))];
    Expression::of_numbers("bitwise", &numbers)
        .nest(BITWISE_XOR, &value(flipped))
        .nest(BITWISE_MASK, &value(mask))
}

pub(crate) fn compare(operator: Operator, with: &[u8]) -> Expression {
    // NFTA_CMP_SREG.
    let numbers = [(1, SCRATCH), (COMPARE_OPERATOR, operator as u32)];
    Expression::of_numbers("cmp", &numbers).nest(COMPARE_DATA, &value(with))
}

/// Returns an expression that matches if the value in the register [`SCRATCH`] is in the range from
/// `first` to `last` ([`Operator::Equal`]), or outside of it. All bytes are in network byte order.
pub(crate) fn range(operator: Operator, (first, last): (&[u8], &[u8])) -> Expression {
    // NFTA_RANGE_SREG and …_OP, then …_FROM_DATA and …_TO_DATA.
    Expression::of_numbers("range", &[(1, SCRATCH), (2, operator as u32)])
        .nest(3, &value(first))
        .nest(4, &value(last))
}

/// Returns an expression that converts the number of 32 bits in the register [`SCRATCH`] to network
/// byte order.
pub(crate) fn to_network_order() -> Expression {
    // NFTA_BYTEORDER_SREG, …_DREG, …_OP, …_LEN and …_SIZE.
    let numbers = [(1, SCRATCH), (2, SCRATCH), (3, TO_NETWORK), (4, 4), (5, 4)];
    Expression::of_numbers("byteorder", &numbers)
}

/// Returns an expression that looks up a key in the set called `set`. The key starts in the
/// register [`FIRST`] and continues in the registers after it.
pub(crate) fn lookup(set: &str, how: Lookup) -> Expression {
    // NFTA_LOOKUP_SREG, …_DREG and …_FLAGS.
    let data = Attributes::new().text(LOOKUP_SET, set).number(2, FIRST);
    let data = match how {
        Lookup::Match => data,
        Lookup::Load(register) => data.number(3, register),
        Lookup::Inverted => data.number(5, INVERTED),
    };
    Expression::new("lookup", data)
}

/// Returns an expression that loads a constant into `register`. `constant` is a [`value`], a
/// [`verdict`], or a verdict with a chain ([`to_chain`]).
pub(crate) fn immediate(register: Register, constant: &Attributes) -> Expression {
    // NFTA_IMMEDIATE_DREG.
    Expression::of_numbers("immediate", &[(1, register)]).nest(IMMEDIATE_DATA, constant)
}

/// Returns the encoded verdict with this code, such as [`ACCEPT`], for the expression `immediate`.
pub(crate) fn verdict(code: u32) -> Attributes {
    Attributes::new().nest(DATA_VERDICT, &Attributes::new().number(VERDICT_CODE, code))
}

/// Returns the encoded verdict that sends packets to `chain`, for the expression `immediate` or an
/// element of a set. `code` is [`GOTO`] or [`JUMP`]. After a jump, a packet can return and continue
/// with the next rule; after a goto, it cannot.
pub(crate) fn to_chain(code: u32, chain: &str) -> Attributes {
    let verdict = Attributes::new().number(VERDICT_CODE, code);
    Attributes::new().nest(DATA_VERDICT, &verdict.text(VERDICT_CHAIN, chain))
}

/// Returns an encoded value for an expression or an element of a set.
pub(crate) fn value(bytes: &[u8]) -> Attributes {
    Attributes::new().bytes(DATA_VALUE, bytes)
}

/// `RTN_LOCAL`: the type of the addresses of this host.
pub(crate) const LOCAL: u32 = 2;

/// Conntrack state `invalid`: `NF_CT_STATE_INVALID_BIT`.
pub(crate) const INVALID: u32 = 1;

/// Conntrack states `established` and `related`: `NF_CT_STATE_BIT` of `IP_CT_ESTABLISHED` and of
/// `IP_CT_RELATED`.
pub(crate) const CONNECTED: u32 = 1 << 1 | 1 << 2;

/// In this order: `NFT_FIB_RESULT_ADDRTYPE` and `NFTA_FIB_F_DADDR`.
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 1 << 1;

/// In this order: `NFT_FIB_RESULT_OIF`, and `NFTA_FIB_F_SADDR` with `…_IIF`.
const FIB_LINK: u32 = 1;
const FIB_SOURCE_AND_INPUT: u32 = 1 | 1 << 3;

/// In this order: `NFT_CT_STATE` and `NFT_CT_STATUS`.
pub(crate) const CT_STATE: u32 = 0;
pub(crate) const CT_STATUS: u32 = 2;

/// `NFT_NAT_DNAT`
const NAT_DESTINATION: u32 = 1;

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
const RANDOM_FULLY: u32 = 1 << 4;

/// In this order: `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
pub(crate) const NAME: u16 = 1;
pub(crate) const DATA: u16 = 2;

/// In this order: `NFTA_DATA_VALUE` and `NFTA_DATA_VERDICT`.
pub(crate) const DATA_VALUE: u16 = 1;
pub(crate) const DATA_VERDICT: u16 = 2;

/// In this order: `NFTA_VERDICT_CODE` and `NFTA_VERDICT_CHAIN`.
pub(crate) const VERDICT_CODE: u16 = 1;
pub(crate) const VERDICT_CHAIN: u16 = 2;

/// `NF_ACCEPT`
pub(crate) const ACCEPT: u32 = 1;

/// In this order: `NFT_JUMP` and `NFT_GOTO`.
pub(crate) const JUMP: u32 = 3_u32.wrapping_neg();
pub(crate) const GOTO: u32 = 4_u32.wrapping_neg();

/// In this order: `NFTA_BITWISE_MASK` and `NFTA_BITWISE_XOR`.
pub(crate) const BITWISE_MASK: u16 = 4;
pub(crate) const BITWISE_XOR: u16 = 5;

/// `NFT_BYTEORDER_HTON`.
const TO_NETWORK: u32 = 1;

/// In this order: `NFTA_CMP_OP` and `NFTA_CMP_DATA`.
const COMPARE_OPERATOR: u16 = 2;
const COMPARE_DATA: u16 = 3;

/// `NFTA_LOOKUP_SET`
const LOOKUP_SET: u16 = 1;

/// `NFT_LOOKUP_F_INV`
const INVERTED: u32 = 1;

/// `NFTA_IMMEDIATE_DATA`
const IMMEDIATE_DATA: u16 = 2;
