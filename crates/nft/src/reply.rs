//! Parses the kernel's answers.

use netlink_packet_core::{
    DecodeError, DefaultNla, NetlinkDeserializable as _, NetlinkHeader, NlasIterator,
    Parseable as _,
};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ListAttribute, NfTablesMessage, SetAttribute, SetElementAttribute,
    TableAttribute,
};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner};

use crate::element::comment_of;
use crate::error::Error;
use crate::limit::ELEMENT_EXPRESSION;
use crate::raw::text;

/// A message from the kernel.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Some elements of a set.
    Elements(Vec<ListAttribute<SetElementAttribute>>),
    /// A rule.
    Rule(HeldRule),
    /// Any other message.
    Other(NetfilterMessageInner),
}

/// The place of a rule, and its comment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldRule {
    pub chain: String,
    pub comment: Option<String>,
}

impl Reply {
    /// Reads a message of this type.
    pub fn read(kind: u16, payload: &[u8]) -> Result<Self, Error> {
        Self::decode(kind, payload).map_err(|error| Error::Unreadable {
            reason: error.to_string(),
        })
    }

    /// Returns the attributes of a chain; empty for another object.
    pub fn chain_attributes(self) -> Vec<ChainAttribute> {
        match self {
            Self::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(it))) => {
                it.attributes
            }
            _ => Vec::new(),
        }
    }

    /// Returns the attributes of a set; empty for another object.
    pub fn set_attributes(self) -> Vec<SetAttribute> {
        match self {
            Self::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewSet(it))) => {
                it.attributes
            }
            _ => Vec::new(),
        }
    }

    /// Returns the attributes of a table; empty for another object.
    pub fn table_attributes(self) -> Vec<TableAttribute> {
        match self {
            Self::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(it))) => {
                it.attributes
            }
            _ => Vec::new(),
        }
    }

    fn decode(kind: u16, payload: &[u8]) -> Result<Self, DecodeError> {
        match kind {
            NEW_ELEMENTS => elements(payload).map(Self::Elements),
            NEW_RULE => {
                let attributes = payload.get(HEADER..).unwrap_or_default();
                rule(attributes).map(Self::Rule)
            }
            _ => {
                let mut header = NetlinkHeader::default();
                header.message_type = kind;
                let message = NetfilterMessage::deserialize(&header, payload)?;
                Ok(Self::Other(message.inner))
            }
        }
    }
}

/// Parses a rule without its expressions: the library formats all bytes of each one for a possible
/// error, which took most of an ADD's time.
fn rule(attributes: &[u8]) -> Result<HeldRule, DecodeError> {
    let mut rule = HeldRule::default();
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute?;
        match attribute.kind() {
            RULE_CHAIN => rule.chain = text(attribute.value()),
            RULE_USERDATA => rule.comment = comment_of(attribute.value()),
            _ => {}
        }
    }
    Ok(rule)
}

/// Parses elements one by one: for each element of a list the library formats all that follow, for
/// a possible error.
fn elements(payload: &[u8]) -> Result<Vec<ListAttribute<SetElementAttribute>>, DecodeError> {
    let mut elements = Vec::new();
    for attribute in NlasIterator::new(payload.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        if attribute.kind() == ELEMENTS {
            for element in NlasIterator::new(attribute.value()) {
                elements.push(ListAttribute::Element(parts(element?.value())?));
            }
        }
    }
    Ok(elements)
}

/// Parses the attributes of an element. The library does not check the length of values, and it
/// reads only the name of an expression.
fn parts(element: &[u8]) -> Result<Vec<SetElementAttribute>, DecodeError> {
    let mut parts = Vec::new();
    for attribute in NlasIterator::new(element) {
        let attribute = attribute?;
        if VALUES.contains(&attribute.kind()) {
            for value in NlasIterator::new(attribute.value()) {
                value?;
            }
        }
        parts.push(match attribute.kind() {
            ELEMENT_EXPRESSION => SetElementAttribute::Other(DefaultNla::parse(&attribute)?),
            _ => SetElementAttribute::parse(&attribute)?,
        });
    }
    Ok(parts)
}

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWSETELEM` in include/uapi/linux/netfilter/.
const NEW_ELEMENTS: u16 = (0x0a << 8) | 0x0c;

/// `NFT_MSG_NEWRULE`, the same way.
const NEW_RULE: u16 = (0x0a << 8) | 0x06;

/// `NFTA_RULE_CHAIN` and `NFTA_RULE_USERDATA`
const RULE_CHAIN: u16 = 2;
const RULE_USERDATA: u16 = 7;

/// `struct nfgenmsg`, in bytes.
const HEADER: usize = 4;

/// `NFTA_SET_ELEM_LIST_ELEMENTS`
const ELEMENTS: u16 = 3;

/// `NFTA_SET_ELEM_KEY`, `NFTA_SET_ELEM_DATA` and `NFTA_SET_ELEM_KEY_END`
const VALUES: [u16; 3] = [1, 2, 10];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_whose_value_is_cut_short_is_refused() {
        // Builds an attribute of `length` bytes with this content.
        let attribute =
            |length: u8, kind: u8, content: &[u8]| [&[length, 0, kind, 0], content].concat();
        let whole = attribute(8, 1, &[10, 1, 0, 2]);
        for (value, is_read) in [(whole, true), (attribute(0, 1, &[10, 1, 0, 2]), false)] {
            let element = attribute(16, 1, &attribute(12, 1, &value));
            let list = [&[0; HEADER][..], &attribute(20, 3, &element)].concat();
            assert_eq!(elements(&list).is_ok(), is_read, "{list:?}");
        }
    }
}
