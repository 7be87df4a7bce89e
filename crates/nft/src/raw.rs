//! Netlink messages of netfilter, with their attributes as raw bytes. So this crate can copy an
//! object to another namespace without parsing the attributes that the kernel reports for it.

use netlink::Message;

use crate::attributes::{Attributes, attributes, number, text, value};
use crate::comment::comment_of;

/// A message of `nf_tables` or of connection tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawMessage {
    /// Type of the message, including the netfilter subsystem, such as [`NEW_TABLE`].
    pub kind: u16,
    /// Address family: `NFPROTO_…`.
    pub family: u8,
    pub attributes: Attributes,
}

impl RawMessage {
    pub fn new(kind: u16, family: u8, attributes: Attributes) -> Self {
        Self {
            kind,
            family,
            attributes,
        }
    }

    /// Returns the value of the top-level attribute `kind`; `None` if it is absent.
    pub fn value(&self, kind: u16) -> Option<&[u8]> {
        value(&self.attributes, kind)
    }

    /// Returns the value of the attribute `kind` as text; empty if the attribute is absent.
    pub fn text(&self, kind: u16) -> String {
        text(self.value(kind).unwrap_or_default())
    }

    /// Returns the value of the attribute `kind` as a number; 0 if the attribute is absent.
    pub fn number(&self, kind: u16) -> u64 {
        number(self.value(kind))
    }

    /// Returns the comment in a message about a rule; `None` for a rule without a comment.
    pub fn rule_comment(&self) -> Option<String> {
        self.value(RULE_USERDATA).and_then(comment_of)
    }

    /// Returns a message of type `kind` with only those attributes of this message that are in
    /// `kept`.
    pub fn with_only(&self, kind: u16, kept: &[u16]) -> Self {
        let kept = attributes(&self.attributes).filter(|it| kept.contains(&it.kind));
        let attributes = kept.fold(Attributes::new(), |all, it| all.and(it.whole));
        Self::new(kind, self.family, attributes)
    }

    /// Parses a message of netfilter; `None` if it is too short for the header (`struct nfgenmsg`).
    pub fn read(Message { kind, body, .. }: &Message) -> Option<Self> {
        let ([family, ..], attributes) = body.split_first_chunk::<4>()?;
        Some(Self::new(*kind, *family, Attributes::new().and(attributes)))
    }

    /// Returns the content of the message: the header (`struct nfgenmsg`) and the attributes.
    pub fn body(&self) -> Vec<u8> {
        [&[self.family, 0, 0, 0], &*self.attributes].concat()
    }
}

/// The subsystem in the upper byte of a message's type (`NFNL_SUBSYS_NFTABLES`), and the types of
/// messages of this subsystem (`NFT_MSG_…`). See `include/uapi/linux/netfilter/nf_tables.h`.
const NF_TABLES: u16 = 10 << 8;
pub(crate) const NEW_TABLE: u16 = NF_TABLES;
pub(crate) const GET_TABLE: u16 = NF_TABLES + 1;
pub(crate) const DELETE_TABLE: u16 = NF_TABLES + 2;
pub(crate) const NEW_CHAIN: u16 = NF_TABLES + 3;
pub(crate) const GET_CHAIN: u16 = NF_TABLES + 4;
pub(crate) const DELETE_CHAIN: u16 = NF_TABLES + 5;
pub(crate) const NEW_RULE: u16 = NF_TABLES + 6;
pub(crate) const GET_RULE: u16 = NF_TABLES + 7;
pub(crate) const DELETE_RULE: u16 = NF_TABLES + 8;
pub(crate) const NEW_SET: u16 = NF_TABLES + 9;
pub(crate) const GET_SET: u16 = NF_TABLES + 10;
pub(crate) const DELETE_SET: u16 = NF_TABLES + 11;
pub(crate) const NEW_ELEMENTS: u16 = NF_TABLES + 12;
pub(crate) const GET_ELEMENTS: u16 = NF_TABLES + 13;
pub(crate) const DELETE_ELEMENTS: u16 = NF_TABLES + 14;
pub(crate) const GET_GENERATION: u16 = NF_TABLES + 16;
pub(crate) const TRACE: u16 = NF_TABLES + 17;
pub(crate) const NEW_OBJECT: u16 = NF_TABLES + 18;
pub(crate) const NEW_FLOW_TABLE: u16 = NF_TABLES + 22;

/// Types of messages of connection tracking: `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_…`
/// (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).
pub(crate) const GET_CONNECTIONS: u16 = (1 << 8) + 1;
pub(crate) const DELETE_CONNECTIONS: u16 = (1 << 8) + 2;

/// Type of the message that creates an nfacct object: `NFNL_SUBSYS_ACCT` and `NFNL_MSG_ACCT_NEW`
/// (`include/uapi/linux/netfilter/nfnetlink_acct.h`).
pub(crate) const NEW_ACCOUNT: u16 = 7 << 8;

/// The attribute with the table's name, in messages about tables and their objects:
/// `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE` and so on.
pub(crate) const TABLE: u16 = 1;

/// Attributes of a chain: `NFTA_CHAIN_…`.
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const CHAIN_HOOK: u16 = 4;
pub(crate) const CHAIN_POLICY: u16 = 5;
pub(crate) const CHAIN_USES: u16 = 6;
pub(crate) const CHAIN_TYPE: u16 = 7;

/// Attributes of a rule: `NFTA_RULE_…`.
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const RULE_USERDATA: u16 = 7;

/// Attributes of a set: `NFTA_SET_…`.
pub(crate) const SET_NAME: u16 = 2;
pub(crate) const SET_FLAGS: u16 = 3;
pub(crate) const SET_KEY_TYPE: u16 = 4;
pub(crate) const SET_KEY_LENGTH: u16 = 5;
pub(crate) const SET_DATA_TYPE: u16 = 6;
pub(crate) const SET_DATA_LENGTH: u16 = 7;
pub(crate) const SET_ID: u16 = 10;
pub(crate) const SET_USERDATA: u16 = 13;
pub(crate) const SET_EXPRESSION: u16 = 17;

/// Attributes of a message about elements, with the set's name and the list of elements. In this
/// order: `NFTA_SET_ELEM_LIST_SET` and `NFTA_SET_ELEM_LIST_ELEMENTS`.
pub(crate) const ELEMENTS_SET: u16 = 2;
pub(crate) const ELEMENTS: u16 = 3;

/// The attribute of each item in a list: `NFTA_LIST_ELEM`.
pub(crate) const ITEM: u16 = 1;
