//! Elements of sets, and the comment that names their owner.

use std::fmt;
use std::net::IpAddr;

use netlink::octets;
use serde::{Deserialize, Serialize};

use crate::attributes::{Attributes, number, text, value};
use crate::comment::{comment, comment_of};
use crate::expression::{self, DATA_VALUE, DATA_VERDICT, GOTO, VERDICT_CHAIN};
use crate::register::padded;
use crate::{Limit, Set, Table, TargetType, Type};

/// An element of a set: a key with its target and owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Element {
    /// The set's name.
    pub set: String,
    /// The parts of the key, encoded as the kernel's registers contain them.
    key: Vec<u8>,
    target: Target,
    /// The owner, stored as the element's comment; empty for an element without a comment. The
    /// caller guarantees at most 128 bytes, the limit of nft(8) for comments.
    pub owner: String,
}

/// Target of a key. Its kind is the set's [`TargetType`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Target {
    None,
    /// None: the key is the first one after a range, in a set of ranges.
    End,
    /// The chain's name.
    Chain(String),
    /// The values, encoded as the kernel's registers contain them.
    Values(Vec<u8>),
    Limit(Limit),
}

/// A part of a key or of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The name of a link, at most 15 bytes.
    InterfaceName(&'a str),
    /// A MAC address.
    EtherAddress([u8; 6]),
    /// An IPv4 or IPv6 address.
    Address(IpAddr),
    /// The number of a transport protocol.
    Protocol(u8),
    /// A port of a transport protocol.
    Port(u16),
}

impl Element {
    /// Creates an element for the set called `set`, with the key `values` and without a target.
    pub fn new(set: &str, values: &[Value<'_>], owner: &str) -> Self {
        Self {
            set: set.to_owned(),
            key: registers(values),
            target: Target::None,
            owner: owner.to_owned(),
        }
    }

    /// Makes the element the end of a range, whose last key precedes the element's. The kernel stores
    /// no owner of an end.
    pub(crate) fn end(self) -> Self {
        Self {
            target: Target::End,
            owner: String::new(),
            ..self
        }
    }

    /// Sets the chain of this name as the target.
    pub fn to_chain(self, name: &str) -> Self {
        let target = Target::Chain(name.to_owned());
        Self { target, ..self }
    }

    /// Sets `values` as the target.
    pub fn to_values(self, values: &[Value<'_>]) -> Self {
        let target = Target::Values(registers(values));
        Self { target, ..self }
    }

    /// Sets a limit as the target: only packets above the limit match the element.
    pub fn limited_to(self, limit: Limit) -> Self {
        let target = Target::Limit(limit);
        Self { target, ..self }
    }

    /// Creates an element of a set of counts. The element maps `key` to `number`, the number of
    /// elements of another set whose keys end in `key`.
    pub(crate) fn count(set: &str, key: &[u8], number: u32) -> Self {
        Self {
            set: set.to_owned(),
            key: key.to_owned(),
            target: Target::Values(number.to_ne_bytes().to_vec()),
            owner: String::new(),
        }
    }

    /// Returns the number in an element of a set of counts. Returns `None` if the target is not a
    /// value of four bytes.
    pub(crate) fn number(&self) -> Option<u32> {
        match &self.target {
            Target::Values(bytes) => Some(u32::from_ne_bytes(bytes.as_slice().try_into().ok()?)),
            Target::None | Target::End | Target::Chain(_) | Target::Limit(_) => None,
        }
    }

    /// Returns the set's name and the key. Together they identify an element: a set has at most one
    /// element per key.
    pub fn place(&self) -> (&str, &[u8]) {
        (&self.set, &self.key)
    }

    /// Returns a text for the operator: the kernel lacks this element or has another value for it.
    pub fn describe_missing(&self) -> String {
        format!("nf_tables: {self} is missing or has another value")
    }

    /// Returns the parts of the key. The caller guarantees that the element is of `set`, which
    /// describes the types of the parts.
    pub fn key(&self, set: &Set) -> Vec<Value<'_>> {
        parts(&set.key, &self.key)
    }

    /// Returns the parts of the key; `None` if `table` does not describe the element's set.
    pub fn key_in(&self, table: &Table) -> Option<Vec<Value<'_>>> {
        Some(self.key(table.sets.iter().find(|it| it.name == self.set)?))
    }

    /// Returns the parts of the target; empty if the target is of another kind than
    /// [`TargetType::Values`]. The caller guarantees that the element is of `set`.
    pub fn target(&self, set: &Set) -> Vec<Value<'_>> {
        match (&self.target, &set.target) {
            (Target::Values(bytes), TargetType::Values(types)) => parts(types, bytes),
            _ => Vec::new(),
        }
    }

    /// Returns the name of the chain that the element points to; `None` if its target is not a
    /// chain.
    pub fn chain(&self) -> Option<&str> {
        match &self.target {
            Target::Chain(name) => Some(name),
            Target::None | Target::End | Target::Values(_) | Target::Limit(_) => None,
        }
    }

    /// Encodes the element for the message that adds it.
    pub(crate) fn attributes(&self) -> Attributes {
        let key = self.key_attribute();
        let pair = match &self.target {
            Target::None | Target::End => key,
            Target::Chain(name) => key.nest(DATA, &expression::to_chain(GOTO, name)),
            Target::Values(bytes) => key.nest(DATA, &expression::value(bytes)),
            Target::Limit(limit) => key.nest(EXPRESSION, &limit.expression()),
        };
        if self.owner.is_empty() {
            return pair;
        }
        pair.bytes(USERDATA, &comment(&self.owner))
    }

    /// Encodes the key, which is enough to read or delete the element.
    pub(crate) fn key_attribute(&self) -> Attributes {
        let key = Attributes::new().nest(KEY, &expression::value(&self.key));
        if self.target == Target::End {
            return key.number(FLAGS, INTERVAL_END);
        }
        key
    }

    /// Reads an element of the set called `set` from the element's attributes. Returns `None` if
    /// they contain no key.
    pub(crate) fn read(set: &str, attributes: &[u8]) -> Option<Self> {
        let data = value(attributes, DATA).unwrap_or_default();
        let chain = value(data, DATA_VERDICT).and_then(|it| value(it, VERDICT_CHAIN));
        let bytes = value(data, DATA_VALUE);
        let limit = value(attributes, EXPRESSION).and_then(Limit::read);
        let is_end = number(value(attributes, FLAGS)) & u64::from(INTERVAL_END) != 0;
        let targets = [
            is_end.then_some(Target::End),
            chain.map(|it| Target::Chain(text(it))),
            bytes.map(|it| Target::Values(it.to_vec())),
            limit.map(Target::Limit),
        ];
        Some(Self {
            set: set.to_owned(),
            key: value(value(attributes, KEY)?, DATA_VALUE)?.to_vec(),
            target: targets.into_iter().flatten().next().unwrap_or(Target::None),
            owner: value(attributes, USERDATA)
                .and_then(comment_of)
                .unwrap_or_default(),
        })
    }
}

impl<'a> Value<'a> {
    fn append_to(self, key: &mut Vec<u8>) {
        match self {
            Self::InterfaceName(name) => {
                let end = key.len() + 16;
                key.extend(name.bytes().take(15));
                key.resize(end, 0);
            }
            Self::EtherAddress(address) => key.extend(address),
            Self::Address(address) => key.extend(octets(address)),
            Self::Protocol(number) => key.push(number),
            Self::Port(number) => key.extend(number.to_be_bytes()),
        }
    }

    /// Reads a value of type `kind` from the start of `bytes`. Returns `None` if the bytes are too
    /// few, or if a name is not UTF-8.
    fn read(kind: Type, bytes: &'a [u8]) -> Option<Self> {
        Some(match kind {
            Type::InterfaceName => {
                let name = bytes.split(|byte| *byte == 0).next()?;
                Self::InterfaceName(str::from_utf8(name).ok()?)
            }
            Type::EtherAddress => Self::EtherAddress(*bytes.first_chunk()?),
            Type::Ipv4Address => Self::Address(IpAddr::from(*bytes.first_chunk::<4>()?)),
            Type::Ipv6Address => Self::Address(IpAddr::from(*bytes.first_chunk::<16>()?)),
            Type::Protocol => Self::Protocol(*bytes.first()?),
            Type::Port => Self::Port(u16::from_be_bytes(*bytes.first_chunk()?)),
        })
    }
}

/// Reads values of these types from `bytes`, up to the first unreadable one.
fn parts<'a>(types: &[Type], bytes: &'a [u8]) -> Vec<Value<'a>> {
    let mut rest = bytes;
    let parts = types.iter().map_while(|part| {
        let (bytes, next) = rest.split_at_checked(padded(part.len()).min(rest.len()))?;
        rest = next;
        Value::read(*part, bytes)
    });
    parts.collect()
}

/// Encodes `values` one after the other, as the kernel's registers contain them. If there are
/// several values, each one is padded to a multiple of four bytes, the size of a register.
fn registers(values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        value.append_to(&mut bytes);
        if values.len() > 1 {
            bytes.resize(padded(bytes.len()), 0);
        }
    }
    bytes
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner.as_str() {
            "" => write!(f, "element in set {}", self.set),
            owner => write!(f, "element of {owner} in set {}", self.set),
        }
    }
}

/// In this order: `NFTA_SET_ELEM_KEY`, `…_DATA`, `…_FLAGS`, `…_USERDATA` and `…_EXPR`.
const KEY: u16 = 1;
const DATA: u16 = 2;
const FLAGS: u16 = 3;
const USERDATA: u16 = 6;
const EXPRESSION: u16 = 7;

/// `NFT_SET_ELEM_INTERVAL_END`
const INTERVAL_END: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_key_fill_registers_of_four_bytes() {
        let mac = [1, 2, 3, 4, 5, 6];
        let values = [Value::InterfaceName("veth0"), Value::EtherAddress(mac)];
        let key = Element::new("s", &values, "").key;
        assert_eq!(
            key,
            *b"veth0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\0\0"
        );
        let alone = Element::new("s", &values[1..], "").key;
        assert_eq!(alone, mac);
    }

    #[test]
    fn element_without_owner_is_named_without_it() {
        let element = |owner| Element::new("bridges", &[], owner).to_string();
        assert_eq!(element(""), "element in set bridges");
        assert_eq!(element("cni:n/c/i"), "element of cni:n/c/i in set bridges");
    }

    #[test]
    fn element_is_read_as_it_was_written() {
        let address = Value::Address([10, 1, 0, 2].into());
        let element = Element::new("sources", &[address], "cni:pods/c1/eth0");
        let target = [address, Value::Port(80)];
        for element in [
            element.clone(),
            element.clone().to_chain("policy"),
            element.clone().to_values(&target),
            element.clone().end(),
            element.limited_to(Limit::new(1000, 64).unwrap()),
        ] {
            let read = Element::read("sources", &element.attributes());
            assert_eq!(read, Some(element));
        }
    }

    #[test]
    fn key_is_taken_apart_as_it_was_put_together() {
        let key = [
            Type::InterfaceName,
            Type::EtherAddress,
            Type::Ipv6Address,
            Type::Protocol,
            Type::Port,
        ];
        let set = Set::new("ports", key, TargetType::None);
        let values = [
            Value::InterfaceName("veth0"),
            Value::EtherAddress([1, 2, 3, 4, 5, 6]),
            Value::Address([0xfd00, 1, 0, 0, 0, 0, 0, 2].into()),
            Value::Protocol(17),
            Value::Port(8080),
        ];
        assert_eq!(Element::new("ports", &values, "").key(&set), values);
        let alone = Set::new("ports", [Type::Port], TargetType::None);
        let port = [Value::Port(8080)];
        assert_eq!(Element::new("ports", &port, "").key(&alone), port);
        let to = [Value::Address([10, 1, 0, 2].into()), Value::Port(80)];
        let map = Set {
            target: TargetType::Values(vec![Type::Ipv4Address, Type::Port]),
            ..alone
        };
        let element = Element::new("ports", &port, "").to_values(&to);
        assert_eq!(element.target(&map), to);
        assert_eq!(Element::new("ports", &port, "").target(&map), []);
    }
}
