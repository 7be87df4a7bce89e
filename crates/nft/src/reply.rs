//! What the kernel answers.

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NlasIterator, Parseable as _,
};
use netlink_packet_netfilter::nftables::{ListAttribute, SetElementAttribute};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner};

/// A message from the kernel.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Some elements of a set.
    Elements(Vec<ListAttribute<SetElementAttribute>>),
    /// All else.
    Other(NetfilterMessageInner),
}

impl NetlinkDeserializable for Reply {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.message_type == NEW_ELEMENTS {
            return elements(payload).map(Self::Elements);
        }
        NetfilterMessage::deserialize(header, payload).map(|message| Self::Other(message.inner))
    }
}

/// One by one: for each element of a list the library writes down all that follow it, in case
/// that one cannot be read.
fn elements(payload: &[u8]) -> Result<Vec<ListAttribute<SetElementAttribute>>, DecodeError> {
    let mut elements = Vec::new();
    for attribute in NlasIterator::new(payload.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        if attribute.kind() == ELEMENTS {
            for element in NlasIterator::new(attribute.value()) {
                elements.push(ListAttribute::parse(&element?)?);
            }
        }
    }
    Ok(elements)
}

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWSETELEM` in include/uapi/linux/netfilter/.
const NEW_ELEMENTS: u16 = (0x0a << 8) | 0x0c;

/// `struct nfgenmsg`, in bytes.
const HEADER: usize = 4;

/// `NFTA_SET_ELEM_LIST_ELEMENTS`
const ELEMENTS: u16 = 3;
