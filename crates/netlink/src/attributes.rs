//! Encodes and decodes netlink attributes: the types, lengths and values behind a message's header.

use netlink_packet_core::{NLA_F_NESTED, NLA_TYPE_MASK};

use crate::message::ALIGNMENT;

/// Encoded netlink attributes, one after the other, each aligned to 4 bytes.
#[must_use]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Returns no attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an attribute of type `kind` with this value.
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let Self(bytes) = &mut self;
        let length = u16::try_from(HEADER + value.len()).unwrap_or(u16::MAX);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    /// Adds an attribute with a number in the host's byte order.
    pub fn word(self, kind: u16, number: u32) -> Self {
        self.bytes(kind, &number.to_ne_bytes())
    }

    /// Adds an attribute with a number in network byte order.
    pub fn number(self, kind: u16, number: u32) -> Self {
        self.bytes(kind, &number.to_be_bytes())
    }

    /// Adds an attribute with a text and a zero byte behind the text.
    pub fn text(self, kind: u16, text: &str) -> Self {
        self.bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that contains attributes.
    pub fn nest(self, kind: u16, parts: &Self) -> Self {
        self.bytes(kind | NLA_F_NESTED, &parts.0)
    }

    /// Appends `others`, a sequence of encoded attributes.
    pub fn and(mut self, others: &[u8]) -> Self {
        self.0.extend(others);
        self
    }
}

impl std::ops::Deref for Attributes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// An attribute of a message or of another attribute.
#[derive(Debug, Clone, Copy)]
pub struct Attribute<'a> {
    /// Type without flags such as `NLA_F_NESTED`.
    pub kind: u16,
    /// Value without padding.
    pub value: &'a [u8],
    /// Header, value and padding of the attribute.
    pub whole: &'a [u8],
}

/// Splits `bytes` into attributes. Stops before a truncated attribute.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let ([low, high, kind @ ..], _) = rest.split_first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let value = rest.get(HEADER..length)?;
        let aligned = length.next_multiple_of(ALIGNMENT).min(rest.len());
        let (whole, next) = rest.split_at_checked(aligned)?;
        rest = next;
        let kind = u16::from_ne_bytes(*kind) & NLA_TYPE_MASK;
        Some(Attribute { kind, value, whole })
    })
}

/// Returns the value of the first attribute of type `kind` in `bytes`; `None` if there is no such
/// attribute.
pub fn value(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|it| it.kind == kind)
        .map(|it| it.value)
}

/// Returns the text in `value` before the first zero byte.
pub fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

/// Returns the number that `value` contains in network byte order; 0 if `value` is `None`.
pub fn number(value: Option<&[u8]>) -> u64 {
    let bytes = value.unwrap_or_default().iter().take(8);
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the 16-bit number at the start of `value`; `None` if it is too short.
pub(crate) fn short(value: &[u8]) -> Option<u16> {
    value.first_chunk().copied().map(u16::from_ne_bytes)
}

/// Returns the 32-bit number at the start of `value`; `None` if it is too short.
pub(crate) fn word(value: &[u8]) -> Option<u32> {
    value.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Returns the signed 32-bit number at `index` in `value`, an array of such numbers; `None` if the
/// array is shorter.
pub(crate) fn entry(value: &[u8], index: usize) -> Option<i32> {
    let (numbers, _) = value.as_chunks();
    numbers.get(index).copied().map(i32::from_ne_bytes)
}

/// Size of `struct nlattr` in bytes.
const HEADER: usize = 4;
