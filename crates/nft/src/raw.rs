//! Messages in the kernel's own form, which another namespace accepts again.

use crate::frame::Frame;

/// A message of `nf_tables`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawMessage {
    /// `NFT_MSG_…`
    pub kind: u8,
    /// `NFPROTO_…`
    pub family: u8,
    /// All attributes, each aligned to 4 bytes.
    pub attributes: Vec<u8>,
}

impl RawMessage {
    pub fn new(kind: u8, family: u8, attributes: Vec<u8>) -> Self {
        Self {
            kind,
            family,
            attributes,
        }
    }

    /// Returns the value of a top-level attribute.
    pub fn value(&self, kind: u16) -> Option<&[u8]> {
        value(&self.attributes, kind)
    }

    /// Returns the text of an attribute; empty if it is absent.
    pub fn text(&self, kind: u16) -> String {
        text(self.value(kind).unwrap_or_default())
    }

    /// Returns the message with only the attributes in `kept`, as type `kind`.
    pub fn with_only(&self, kind: u8, kept: &[u16]) -> Self {
        let kept = attributes(&self.attributes).filter(|it| kept.contains(&it.kind));
        let attributes = kept.flat_map(|it| it.whole).copied().collect();
        Self::new(kind, self.family, attributes)
    }

    /// Parses a message; `None` if it is not of `nf_tables`.
    pub fn read(kind: u16, body: &[u8]) -> Option<Self> {
        let [high, low] = kind.to_be_bytes();
        let ([family, ..], attributes) = body.split_first_chunk::<4>()?;
        (u16::from(high) == SUBSYSTEM).then(|| Self::new(low, *family, attributes.to_owned()))
    }

    pub fn to_frame(&self) -> Frame {
        Frame {
            kind: SUBSYSTEM << 8 | u16::from(self.kind),
            flags: 0,
            body: [&[self.family, 0, 0, 0], self.attributes.as_slice()].concat(),
        }
    }
}

/// An attribute of a message or of another attribute.
pub(crate) struct Attribute<'a> {
    /// Type without the flags.
    pub kind: u16,
    pub value: &'a [u8],
    /// The attribute with its header and the padding behind it.
    pub whole: &'a [u8],
}

/// Splits `bytes` into attributes, up to a truncated one.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let ([low, high, kind @ ..], _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let value = rest.get(4..length)?;
        let aligned = length.next_multiple_of(4).min(rest.len());
        let (whole, next) = rest.split_at_checked(aligned)?;
        rest = next;
        let kind = u16::from_ne_bytes(*kind) & KIND;
        Some(Attribute { kind, value, whole })
    })
}

/// Returns the value of the first attribute of this kind.
pub(crate) fn value(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|it| it.kind == kind)
        .map(|it| it.value)
}

/// Encodes an attribute with this value.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes an attribute that contains attributes.
pub(crate) fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &parts.concat())
}

/// Reads a string up to its first zero byte.
pub(crate) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;

/// `NLA_TYPE_MASK` and `NLA_F_NESTED`
const KIND: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
