//! Messages in the kernel's own form, which another namespace accepts again.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer};
use nix::errno::Errno;

use crate::error::Error;
use crate::socket::NetfilterSocket;

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

    fn append_to(&self, bytes: &mut Vec<u8>, sequence: u32, flags: u16) {
        let kind = SUBSYSTEM << 8 | u16::from(self.kind);
        let header = [self.family, 0, 0, 0];
        append(bytes, (kind, flags, sequence), &[&header, &self.attributes]);
    }
}

impl NetfilterSocket {
    /// Requests all objects that match `message`.
    pub fn dump_raw(&self, message: &RawMessage, what: &str) -> Result<Vec<RawMessage>, Error> {
        let number = self.number(1);
        let mut bytes = Vec::new();
        message.append_to(&mut bytes, number, NLM_F_REQUEST | NLM_F_DUMP);
        self.send(&bytes)?;
        let mut messages = Vec::new();
        loop {
            let bytes = self.receive_bytes()?;
            for answer in split(&bytes)? {
                if answer.sequence_number() != number {
                    continue;
                }
                match answer.message_type() {
                    DONE => return Ok(messages),
                    ERROR => {
                        let code = answer.payload().first_chunk().copied();
                        let errno = Errno::from_raw(-i32::from_ne_bytes(code.unwrap_or_default()));
                        let operation = format!("read {what}");
                        return Err(Error::Refused { operation, errno });
                    }
                    kind => messages.extend(read(kind, answer.payload())),
                }
            }
        }
    }

    /// Sends `messages`, which all create objects, as one transaction.
    pub fn commit_raw(&self, messages: &[RawMessage], what: &str) -> Result<(), Error> {
        let Some(last) = messages.len().checked_sub(1) else {
            return Ok(());
        };
        let first = self.number(messages.len() + 2);
        let mut bytes = Vec::new();
        let frame = [0, 0, 0, SUBSYSTEM.to_le_bytes()[0]];
        append(&mut bytes, (BATCH_BEGIN, NLM_F_REQUEST, first), &[&frame]);
        let mut number = first;
        for (place, message) in messages.iter().enumerate() {
            number += 1;
            let acknowledge = if place == last { NLM_F_ACK } else { 0 };
            message.append_to(&mut bytes, number, NLM_F_REQUEST | CREATE | acknowledge);
        }
        append(
            &mut bytes,
            (BATCH_END, NLM_F_REQUEST, number + 1),
            &[&frame],
        );
        self.send(&bytes)?;
        self.expect_success(first..number + 1, |place| {
            let message = place.checked_sub(1).and_then(|it| messages.get(it));
            let of = message.map(|it| format!(" of table {}", it.text(1)));
            format!("{what}{}", of.unwrap_or_default())
        })
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

/// Splits a datagram into messages.
pub(crate) fn split(bytes: &[u8]) -> Result<Vec<NetlinkBuffer<&[u8]>>, Error> {
    let mut messages = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let unreadable = |error: netlink_packet_core::DecodeError| Error::Unreadable {
            reason: error.to_string(),
        };
        let buffer = NetlinkBuffer::new_checked(rest).map_err(unreadable)?;
        let length = (buffer.length() as usize).next_multiple_of(4);
        messages.push(buffer);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(messages)
}

/// Parses a message; `None` if it is not of `nf_tables`.
pub(crate) fn read(kind: u16, payload: &[u8]) -> Option<RawMessage> {
    let [low, high] = kind.to_be_bytes();
    let ([family, ..], attributes) = payload.split_first_chunk::<4>()?;
    (u16::from(low) == SUBSYSTEM).then(|| RawMessage::new(high, *family, attributes.to_owned()))
}

/// Appends a netlink message with this header, aligned.
fn append(bytes: &mut Vec<u8>, (kind, flags, number): (u16, u16, u32), parts: &[&[u8]]) {
    let body: usize = parts.iter().map(|it| it.len()).sum();
    let length = u32::try_from(HEADER + body).unwrap_or(u32::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(parts.concat());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Size of `struct nlmsghdr` in bytes.
const HEADER: usize = 16;

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;

/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// `NLM_F_CREATE | NLM_F_APPEND`
const CREATE: u16 = 0x0c00;

/// `NLMSG_ERROR` and `NLMSG_DONE`
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// `NLA_TYPE_MASK` and `NLA_F_NESTED`
const KIND: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
