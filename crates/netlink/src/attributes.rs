//! Reads and nests attributes of netlink messages.

use std::iter;

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED, NLA_TYPE_MASK};

/// Returns the attributes in `bytes`, each with its number. A malformed attribute ends the list.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    iter::from_fn(move || {
        let length = usize::from(short(bytes)?);
        let kind = short(bytes.get(KIND..)?)? & NLA_TYPE_MASK;
        let value = bytes.get(VALUE..length)?;
        let next = length.next_multiple_of(ALIGNMENT);
        bytes = bytes.get(next..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the attribute `kind` in `bytes`; `None` if there is none.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut attributes = attributes(bytes);
    attributes.find(|it| it.0 == kind).map(|it| it.1)
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

/// Returns the text in `value`, without the zero byte at its end.
pub(crate) fn text(value: &[u8]) -> String {
    let text = value.strip_suffix(&[0]).unwrap_or(value);
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the attribute `kind` that contains `attribute`.
pub(crate) fn nested(kind: u16, attribute: &DefaultNla) -> DefaultNla {
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

/// Offsets in `struct nlattr`, and the alignment of attributes, in bytes.
const KIND: usize = 2;
const VALUE: usize = 4;
const ALIGNMENT: usize = 4;
