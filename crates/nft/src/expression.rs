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
pub(crate) enum Operator {
    Equal = 0,
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
    let numbers = [
        (FIB_REGISTER, SCRATCH),
        (FIB_RESULT, FIB_ADDRESS_TYPE),
        (FIB_FLAGS, FIB_DESTINATION),
    ];
    Expression::of_numbers("fib", &numbers)
}

/// Returns an expression that loads a property of the packet's connection into the register
/// [`SCRATCH`]. `key` is [`CT_STATE`] or [`CT_STATUS`].
pub(crate) fn connection(key: u32) -> Expression {
    Expression::of_numbers("ct", &[(CT_REGISTER, SCRATCH), (CT_KEY, key)])
}

/// Returns an expression that translates the connection's destination (DNAT) to the address in the
/// register `address` and the port in the register `port`.
pub(crate) fn translate(version: IpVersion, address: Register, port: Register) -> Expression {
    let numbers = [
        (NAT_TYPE, NAT_DESTINATION),
        (NAT_FAMILY, version.number().into()),
        (NAT_ADDRESS, address),
        (NAT_PORT, port),
    ];
    Expression::of_numbers("nat", &numbers)
}

pub(crate) fn masquerade(port: SourcePort) -> Expression {
    let is_random = port == SourcePort::FullyRandom;
    let flags = is_random.then_some((MASQUERADE_FLAGS, RANDOM_FULLY));
    Expression::of_numbers("masq", flags.as_slice())
}

/// Returns an expression that changes the value in the register [`SCRATCH`]: keeps the bits that
/// are set in `mask`, then flips the bits that are set in `flipped`. The caller guarantees that
/// `mask` and `flipped` are as long as the value.
pub(crate) fn changed(mask: &[u8], flipped: &[u8]) -> Expression {
    let data = Attributes::new()
        .number(BITWISE_SOURCE, SCRATCH)
        .number(BITWISE_DESTINATION, SCRATCH)
        .number(BITWISE_LENGTH, u32_of(mask.len()))
        .nest(BITWISE_XOR, &value(flipped))
        .nest(BITWISE_MASK, &value(mask));
    Expression::new("bitwise", data)
}

pub(crate) fn compare(operator: Operator, with: &[u8]) -> Expression {
    let data = Attributes::new()
        .number(COMPARE_SOURCE, SCRATCH)
        .number(COMPARE_OPERATOR, operator as u32)
        .nest(COMPARE_DATA, &value(with));
    Expression::new("cmp", data)
}

/// Returns an expression that matches if the value in the register [`SCRATCH`] is in the range from
/// `first` to `last` ([`Operator::Equal`]), or outside of it. All bytes are in network byte order.
pub(crate) fn range(operator: Operator, (first, last): (&[u8], &[u8])) -> Expression {
    let data = Attributes::new()
        .number(RANGE_SOURCE, SCRATCH)
        .number(RANGE_OPERATOR, operator as u32)
        .nest(RANGE_FIRST, &value(first))
        .nest(RANGE_LAST, &value(last));
    Expression::new("range", data)
}

/// Returns an expression that converts the number of 32 bits in the register [`SCRATCH`] to network
/// byte order.
pub(crate) fn to_network_order() -> Expression {
    let numbers = [
        (BYTEORDER_SOURCE, SCRATCH),
        (BYTEORDER_DESTINATION, SCRATCH),
        (BYTEORDER_OPERATION, TO_NETWORK),
        (BYTEORDER_LENGTH, 4),
        (BYTEORDER_SIZE, 4),
    ];
    Expression::of_numbers("byteorder", &numbers)
}

/// Returns an expression that looks up a key in the set called `set`. The key starts in the
/// register [`FIRST`] and continues in the registers after it.
pub(crate) fn lookup(set: &str, how: Lookup) -> Expression {
    let data = Attributes::new()
        .text(LOOKUP_SET, set)
        .number(LOOKUP_SOURCE, FIRST);
    let data = match how {
        Lookup::Match => data,
        Lookup::Inverted => data.number(LOOKUP_FLAGS, INVERTED),
        Lookup::Load(register) => data.number(LOOKUP_DESTINATION, register),
    };
    Expression::new("lookup", data)
}

/// Returns an expression that loads a constant into `register`. `constant` is a [`value`], a
/// [`verdict`], or a verdict with a chain ([`to_chain`]).
pub(crate) fn immediate(register: Register, constant: &Attributes) -> Expression {
    let data = Attributes::new()
        .number(IMMEDIATE_DESTINATION, register)
        .nest(IMMEDIATE_DATA, constant);
    Expression::new("immediate", data)
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

/// In this order: `NFTA_FIB_DREG`, `NFTA_FIB_RESULT` and `NFTA_FIB_FLAGS`.
const FIB_REGISTER: u16 = 1;
const FIB_RESULT: u16 = 2;
const FIB_FLAGS: u16 = 3;

/// In this order: `NFT_FIB_RESULT_ADDRTYPE` and `NFTA_FIB_F_DADDR`.
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 1 << 1;

/// In this order: `NFTA_CT_DREG` and `NFTA_CT_KEY`.
const CT_REGISTER: u16 = 1;
const CT_KEY: u16 = 2;

/// In this order: `NFT_CT_STATE` and `NFT_CT_STATUS`.
pub(crate) const CT_STATE: u32 = 0;
pub(crate) const CT_STATUS: u32 = 2;

/// Attributes of `nat`, in this order: `NFTA_NAT_TYPE`, `NFTA_NAT_FAMILY`, `NFTA_NAT_REG_ADDR_MIN`
/// and `NFTA_NAT_REG_PROTO_MIN`.
const NAT_TYPE: u16 = 1;
const NAT_FAMILY: u16 = 2;
const NAT_ADDRESS: u16 = 3;
const NAT_PORT: u16 = 5;

/// `NFT_NAT_DNAT`
const NAT_DESTINATION: u32 = 1;

/// `NFTA_MASQ_FLAGS`
const MASQUERADE_FLAGS: u16 = 1;

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

/// Attributes of `bitwise`, in this order: `NFTA_BITWISE_SREG`, `…_DREG`, `…_LEN`, `…_MASK` and
/// `…_XOR`.
const BITWISE_SOURCE: u16 = 1;
const BITWISE_DESTINATION: u16 = 2;
const BITWISE_LENGTH: u16 = 3;
pub(crate) const BITWISE_MASK: u16 = 4;
pub(crate) const BITWISE_XOR: u16 = 5;

/// Attributes of `cmp`, in this order: `NFTA_CMP_SREG`, `…_OP` and `…_DATA`.
const BYTEORDER_SOURCE: u16 = 1;
const BYTEORDER_DESTINATION: u16 = 2;
const BYTEORDER_OPERATION: u16 = 3;
const BYTEORDER_LENGTH: u16 = 4;
const BYTEORDER_SIZE: u16 = 5;

/// `NFT_BYTEORDER_HTON`.
const TO_NETWORK: u32 = 1;

const RANGE_SOURCE: u16 = 1;
const RANGE_OPERATOR: u16 = 2;
const RANGE_FIRST: u16 = 3;
const RANGE_LAST: u16 = 4;

const COMPARE_SOURCE: u16 = 1;
const COMPARE_OPERATOR: u16 = 2;
const COMPARE_DATA: u16 = 3;

/// Attributes of `lookup`, in this order: `NFTA_LOOKUP_SET`, `…_SREG`, `…_DREG` and `…_FLAGS`.
const LOOKUP_SET: u16 = 1;
const LOOKUP_SOURCE: u16 = 2;
const LOOKUP_DESTINATION: u16 = 3;
const LOOKUP_FLAGS: u16 = 5;

/// `NFT_LOOKUP_F_INV`
const INVERTED: u32 = 1;

/// Attributes of `immediate`, in this order: `NFTA_IMMEDIATE_DREG` and `…_DATA`.
const IMMEDIATE_DESTINATION: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
