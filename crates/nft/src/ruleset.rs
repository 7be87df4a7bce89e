//! Copies all `nf_tables` rules of a namespace: reads them there, and loads them into another
//! namespace.
//!
//! To create a copy of an object, the kernel needs only some of the attributes that it reports. It
//! also reports attributes that only the original can have, such as handles. This module copies the
//! necessary attributes without parsing them. So the copy includes expressions of any kind, rules
//! of iptables, and elements with their state.

use std::collections::BTreeSet;

use netlink::IpVersion;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use crate::attributes::{Attributes, attributes, number, text, value};
use crate::exchange::End;
use crate::expression::parts;
use crate::message::{HOOK_LINKS, TABLE_FLAGS};
use crate::raw::{
    CHAIN_HOOK, GET_ELEMENTS, GET_RULE, NEW_CHAIN, NEW_ELEMENTS, NEW_FLOW_TABLE, NEW_OBJECT,
    NEW_RULE, NEW_SET, NEW_TABLE, RULE_EXPRESSIONS, RawMessage, SET_FLAGS, SET_ID, SET_NAME, TABLE,
};
use crate::{Connection, Error, Message};

/// All rules of a namespace, with their tables, chains, sets and elements. [`Connection::ruleset`]
/// reads them, and [`Connection::load`] creates them in another namespace.
#[derive(Debug, Default)]
pub struct Ruleset {
    pub(crate) messages: Vec<RawMessage>,
    pub(crate) rules: Vec<RulePlace>,
}

/// Location of a rule.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("table {} {table}, chain {chain}", self.family())]
pub struct RulePlace {
    /// Address family of the table: `NFPROTO_…`.
    pub(crate) family: u8,
    /// The table's name.
    pub table: String,
    /// The chain's name.
    pub chain: String,
    /// The rule's handle, as in `nft --handle list ruleset`.
    pub handle: u64,
}

impl Connection {
    /// Reads all rules of this namespace. Equivalent to `nft list ruleset`. If another process
    /// changes the rules meanwhile, reads them again, at most eight times in total. The last result
    /// may mix old and new rules.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`].
    pub fn ruleset(&self) -> Result<Ruleset, Error> {
        let mut ruleset = Ruleset::default();
        for _ in 0..ATTEMPTS {
            let generation = self.generation()?;
            ruleset = self.ruleset_once()?;
            if self.generation()? == generation {
                break;
            }
        }
        Ok(ruleset)
    }

    fn ruleset_once(&self) -> Result<Ruleset, Error> {
        let mut messages = Vec::new();
        for (what, new, kept) in KINDS {
            let question = RawMessage::new(*new + 1, 0, Attributes::new());
            let found = match self.raw_list(what, question) {
                // A kernel that was built without flow tables refuses to list them.
                Err(error) if *new == NEW_FLOW_TABLE && error.errno().is_some() => Vec::new(),
                found => found?,
            };
            let elements = (*new == NEW_SET).then(|| self.every_element(&found));
            messages.extend(found.iter().map(|it| it.with_only(*new, kept)));
            messages.extend(elements.transpose()?.into_iter().flatten());
        }
        let rules = self.rule_places()?;
        Ok(Ruleset { messages, rules })
    }

    /// Reads the elements of all these sets. Returns messages that create the same elements.
    fn every_element(&self, sets: &[RawMessage]) -> Result<Vec<RawMessage>, Error> {
        let mut elements = Vec::new();
        for set in sets {
            let question = set.with_only(GET_ELEMENTS, &[TABLE, SET_NAME]);
            let found = self.raw_list("elements", question)?;
            let found = found.iter();
            elements.extend(found.map(|it| it.with_only(NEW_ELEMENTS, &[1, 2, 3])));
        }
        Ok(elements)
    }

    pub(crate) fn rule_places(&self) -> Result<Vec<RulePlace>, Error> {
        let question = RawMessage::new(GET_RULE, 0, Attributes::new());
        let rules = self.raw_list("rules", question)?;
        Ok(rules.iter().map(RulePlace::read).collect())
    }

    fn raw_list(&self, what: &str, question: RawMessage) -> Result<Vec<RawMessage>, Error> {
        self.dump(&Message::new(format!("read {what}"), question))
    }

    /// Creates the objects of `messages` in one transaction. `what` describes them in error
    /// messages.
    pub(crate) fn create(&self, what: &str, messages: Vec<RawMessage>) -> Result<(), Error> {
        let messages = messages.into_iter().map(|raw| {
            let of = format!("{what} of table {}", raw.text(TABLE));
            Message::new(of, raw).with(NLM_F_CREATE | NLM_F_APPEND)
        });
        let messages: Vec<_> = messages.collect();
        self.transact(&messages, None, End::Commit).map(drop)
    }
}

impl RulePlace {
    /// Reads the location from a message about a rule, or from a trace report.
    pub(crate) fn read(message: &RawMessage) -> Self {
        Self {
            family: message.family,
            table: message.text(1),
            chain: message.text(2),
            handle: message.number(3),
        }
    }
}

impl Ruleset {
    /// Returns the names of the network links that chains and flow tables are bound to. A namespace
    /// must have these links before [`Connection::load`] copies the rules to it.
    pub fn links(&self) -> BTreeSet<String> {
        let mut links = BTreeSet::new();
        for message in &self.messages {
            let (single, list) = match message.kind {
                NEW_CHAIN => {
                    let hook = message.value(CHAIN_HOOK).unwrap_or_default();
                    (value(hook, HOOK_LINK), value(hook, HOOK_LINKS))
                }
                NEW_FLOW_TABLE => {
                    let hook = message.value(FLOW_TABLE_HOOK).unwrap_or_default();
                    (None, value(hook, FLOW_TABLE_LINKS))
                }
                _ => continue,
            };
            links.extend(single.map(text));
            let list = attributes(list.unwrap_or_default());
            links.extend(list.map(|it| text(it.value)));
        }
        links
    }

    /// Returns the names of the nfacct objects in which rules of iptables count packets
    /// (`-m nfacct --nfacct-name NAME`). A namespace must have these objects before
    /// [`Connection::load`] copies the rules to it.
    pub fn nfacct_objects(&self) -> BTreeSet<String> {
        let rules = self.messages.iter().filter(|it| it.kind == NEW_RULE);
        let expressions = rules.filter_map(|it| it.value(RULE_EXPRESSIONS));
        let matches = expressions
            .flat_map(parts)
            .filter(|(name, _)| name == "match");
        let nfacct_objects = matches.filter_map(|(_, data)| {
            let is_account = value(data, MATCH_NAME).map(text).as_deref() == Some("nfacct");
            let name = value(data, MATCH_DATA)?.split(|it| *it == 0).next()?;
            is_account.then(|| text(name))
        });
        nfacct_objects.collect()
    }

    /// Returns the size in bytes of all messages of the rule set, without their headers.
    pub fn size(&self) -> usize {
        self.messages.iter().map(|it| it.attributes.len()).sum()
    }
}

/// Converts `message`, the kernel's description of an object, to a message that creates a copy of
/// the object:
///
/// - A set loses the flag `anonymous` and gets the ID `number`. The caller guarantees that the ID
///   is unique in the transaction.
/// - A table keeps only its name, its user data and the flag `dormant`.
/// - A rule of iptables gets the attribute `NFTA_RULE_COMPAT` if it compares the protocol
///   ([`compatible`]).
///
/// Descriptions of other objects are returned unchanged.
pub(crate) fn loadable(message: &RawMessage, number: u32) -> RawMessage {
    let flags = |kind| u32::try_from(message.number(kind)).unwrap_or_default();
    let all = 1..=SET_EXPRESSIONS;
    let (kept, added) = match message.kind {
        NEW_SET => {
            let added = Attributes::new().number(SET_FLAGS, flags(SET_FLAGS) & !ANONYMOUS);
            let kept = all.filter(|it| *it != SET_FLAGS).collect();
            (kept, added.number(SET_ID, number))
        }
        NEW_TABLE => {
            let added = Attributes::new().number(TABLE_FLAGS, flags(TABLE_FLAGS) & DORMANT);
            (vec![TABLE, TABLE_USERDATA], added)
        }
        NEW_RULE => (all.collect(), compatible(message).unwrap_or_default()),
        _ => return message.clone(),
    };
    let mut loadable = message.with_only(message.kind, &kept);
    loadable.attributes = loadable.attributes.and(&added);
    loadable
}

/// Returns the attribute that names the protocol of an iptables rule (`NFTA_RULE_COMPAT`). Returns
/// `None` for a rule without an iptables match or target, or without a comparison of the protocol.
/// The kernel needs this attribute to create the rule, but does not report it for an existing rule.
/// So this function takes the protocol from the rule's comparison.
fn compatible(rule: &RawMessage) -> Option<Attributes> {
    let expressions = rule.value(RULE_EXPRESSIONS)?;
    let (mut is_protocol, mut protocol) = (false, None);
    let mut is_needed = false;
    for (name, data) in parts(expressions) {
        match name.as_str() {
            // `meta l4proto`
            "meta" => is_protocol = number(value(data, 2)) == 16,
            "payload" => is_protocol = is_protocol_field(rule.family, data),
            "cmp" if is_protocol => {
                let compared = value(data, 3).and_then(|it| value(it, 1));
                let is_other = number(value(data, 2)) != 0;
                protocol = compared.and_then(|it| Some((*it.first()?, is_other)));
            }
            "match" | "target" => is_needed = true,
            _ => is_protocol = false,
        }
    }
    let (protocol, is_other) = protocol.filter(|_| is_needed)?;
    let flags = u32::from(is_other) << 1;
    let parts = Attributes::new()
        .number(1, protocol.into())
        .number(2, flags);
    Some(Attributes::new().nest(RULE_COMPATIBILITY, &parts))
}

/// Returns whether an expression `payload` with these attributes reads the protocol field of the
/// network header.
fn is_protocol_field(family: u8, payload: &[u8]) -> bool {
    let [base, offset, length] = [2, 3, 4].map(|it| number(value(payload, it)));
    let is_ipv6 = family == IpVersion::V6.number();
    let place = if is_ipv6 { 6 } else { 9 };
    (base, offset, length) == (1, place, 1)
}

/// The kinds of objects that a copy of the rules contains, in the order in which they must be
/// created. Each tuple has the name of the kind for error messages, the message type that creates
/// the object, and the attributes that are copied. The message type that reads the object is
/// greater by 1. The numbers are from `include/uapi/linux/netfilter/nf_tables.h`.
const KINDS: &[(&str, u16, &[u16])] = &[
    ("tables", NEW_TABLE, &[1, 2, 6]),
    ("objects", NEW_OBJECT, &[1, 2, 3, 4, 8]),
    ("flow tables", NEW_FLOW_TABLE, &[1, 2, 3]),
    ("chains", NEW_CHAIN, &[1, 3, 4, 5, 7]),
    ("sets", NEW_SET, OF_SETS),
    ("rules", NEW_RULE, &[1, 2, 4, 7]),
];

const OF_SETS: &[u16] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18];

/// Attributes of rules, tables and sets, in this order: `NFTA_RULE_COMPAT`, `NFTA_TABLE_USERDATA`
/// and `NFTA_SET_EXPRESSIONS`.
const RULE_COMPATIBILITY: u16 = 5;
const TABLE_USERDATA: u16 = 6;
const SET_EXPRESSIONS: u16 = 18;

/// Attributes of the expression `match` of iptables: `NFTA_MATCH_NAME` and `NFTA_MATCH_INFO`. The
/// latter is a structure of the match; that of nfacct begins with the object's name.
const MATCH_NAME: u16 = 1;
const MATCH_DATA: u16 = 3;

/// In this order: `NFTA_HOOK_DEV`, `NFTA_FLOWTABLE_HOOK` and `NFTA_FLOWTABLE_HOOK_DEVS`.
const HOOK_LINK: u16 = 3;
const FLOW_TABLE_HOOK: u16 = 3;
const FLOW_TABLE_LINKS: u16 = 3;

/// The only flag of a table that affects packets: `NFT_TABLE_F_DORMANT`.
const DORMANT: u32 = 1;

/// The flag of a set that only one rule uses: `NFT_SET_ANONYMOUS`. The kernel deletes such a set
/// with its rule, and refuses a transaction that creates the set without its rule. The copy may
/// need separate transactions for both (`copy.rs`), so its sets have no such flag.
const ANONYMOUS: u32 = 1;

/// Maximum number of attempts to read the rules while no other process changes them. After the last
/// attempt, [`Connection::ruleset`] returns what it has read, even if another process has changed
/// the rules meanwhile.
const ATTEMPTS: usize = 8;
