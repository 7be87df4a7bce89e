//! Copies of all rules of a namespace: read from one, loaded into another.
//!
//! The kernel reports everything that creates a table, set or rule, plus numbers of its own. This
//! module copies the attributes without parsing them. So it keeps expressions of any kind, rules of
//! iptables, and elements with their state.

use std::collections::BTreeSet;

use crate::connection::Connection;
use crate::error::Error;
use crate::raw::{RawMessage, attribute, attributes, nested, text, value};

/// The rules of a namespace.
#[derive(Debug, Default)]
pub struct Ruleset {
    messages: Vec<RawMessage>,
    rules: Vec<RulePlace>,
}

/// Location of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePlace {
    /// Number of the family: `NFPROTO_…`.
    pub(crate) family: u8,
    /// The table's name.
    pub table: String,
    /// The chain's name.
    pub chain: String,
    /// Handle, as in `nft --handle list ruleset`.
    pub handle: u64,
}

impl Connection {
    /// Reads all rules of this namespace. Equivalent to `nft list ruleset`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ruleset(&self) -> Result<Ruleset, Error> {
        let mut ruleset = Ruleset::default();
        for attempt in 0..ATTEMPTS {
            let generation = self.generation()?;
            ruleset = self.ruleset_once()?;
            if attempt > 0 && self.generation()? == generation {
                break;
            }
        }
        Ok(ruleset)
    }

    fn ruleset_once(&self) -> Result<Ruleset, Error> {
        let mut messages = Vec::new();
        for (what, get, new, kept) in KINDS {
            let question = RawMessage::new(*get, 0, Vec::new());
            let found = match self.socket.dump_raw(&question, what) {
                // This kernel was built without flow tables.
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

    fn every_element(&self, sets: &[RawMessage]) -> Result<Vec<RawMessage>, Error> {
        let mut elements = Vec::new();
        for set in sets {
            let mut question = set.with_only(GET_ELEMENTS, &[NAME]);
            question
                .attributes
                .extend(attribute(2, set.value(2).unwrap_or_default()));
            let found = self.socket.dump_raw(&question, "elements")?;
            elements.extend(
                found
                    .iter()
                    .map(|it| it.with_only(NEW_ELEMENTS, &[1, 2, 3])),
            );
        }
        Ok(elements)
    }

    fn rule_places(&self) -> Result<Vec<RulePlace>, Error> {
        let question = RawMessage::new(GET_RULE, 0, Vec::new());
        let rules = self.socket.dump_raw(&question, "rules")?;
        let place = |it: &RawMessage| RulePlace {
            family: it.family,
            table: it.text(1),
            chain: it.text(2),
            handle: number(it.value(3)),
        };
        Ok(rules.iter().map(place).collect())
    }

    /// Creates all of `ruleset` in this namespace, which must have no rules. Returns the locations
    /// of the new rules in the order of [`Ruleset::rules`]. The links in [`Ruleset::links`] must
    /// exist.
    ///
    /// # Errors
    /// [`Error::Refused`]; some rules may exist by then.
    pub fn load(&self, ruleset: &Ruleset) -> Result<Vec<RulePlace>, Error> {
        let (mut waiting, mut length) = (Vec::new(), 0);
        for (message, number) in ruleset.in_order().zip(1..) {
            let message = loadable(message, number);
            length += message.attributes.len();
            waiting.push(message);
            if length > TRANSACTION {
                self.socket.commit_raw(&waiting, "copy rules")?;
                (waiting, length) = (Vec::new(), 0);
            }
        }
        self.socket.commit_raw(&waiting, "copy rules")?;
        self.rule_places()
    }
}

impl Ruleset {
    /// Returns the original locations of all rules.
    pub fn rules(&self) -> &[RulePlace] {
        &self.rules
    }

    /// Returns the names of links that chains and flow tables are bound to.
    pub fn links(&self) -> BTreeSet<String> {
        let hooks = self.messages.iter().filter_map(|it| match it.kind {
            NEW_CHAIN => Some((it.value(CHAIN_HOOK)?, [3, 4])),
            NEW_FLOW_TABLE => Some((it.value(3)?, [3, 3])),
            _ => None,
        });
        let mut links = BTreeSet::new();
        for (hook, kinds) in hooks {
            for part in attributes(hook).filter(|it| kinds.contains(&it.kind)) {
                let is_list = part.kind == kinds[1];
                let names: Vec<_> = attributes(part.value).map(|it| text(it.value)).collect();
                links.extend(if is_list {
                    names
                } else {
                    vec![text(part.value)]
                });
            }
        }
        links
    }

    /// Returns the size of the messages in bytes.
    pub fn size(&self) -> usize {
        self.messages.iter().map(|it| it.attributes.len()).sum()
    }

    /// Returns the messages in an order in which all references exist; map elements refer to
    /// chains.
    fn in_order(&self) -> impl Iterator<Item = &RawMessage> {
        ORDER.iter().flat_map(|kind| {
            let all = self.messages.iter();
            all.filter(move |it| it.kind == *kind)
        })
    }
}

/// Returns `message` in the form that the kernel accepts, with a set number unique in the
/// transaction.
fn loadable(message: &RawMessage, number: u32) -> RawMessage {
    let mut message = message.clone();
    match message.kind {
        NEW_SET => {
            let flags = message.value(3).and_then(|it| it.first_chunk().copied());
            let flags = u32::from_be_bytes(flags.unwrap_or_default()) & !ANONYMOUS;
            let kept: Vec<_> = (1..=18).filter(|it| *it != 3).collect();
            message = message.with_only(NEW_SET, &kept);
            message
                .attributes
                .extend(attribute(3, &flags.to_be_bytes()));
            message
                .attributes
                .extend(attribute(SET_ID, &number.to_be_bytes()));
        }
        NEW_TABLE => {
            let flags = message.value(2).and_then(|it| it.first_chunk().copied());
            let flags = u32::from_be_bytes(flags.unwrap_or_default()) & DORMANT;
            message = message.with_only(NEW_TABLE, &[NAME, 6]);
            message
                .attributes
                .extend(attribute(2, &flags.to_be_bytes()));
        }
        NEW_RULE => message
            .attributes
            .extend(compatible(&message).unwrap_or_default()),
        _ => {}
    }
    message
}

/// Returns the protocol of a rule with an iptables match. The kernel requires it but does not
/// report it; the comparison before the match contains it.
fn compatible(rule: &RawMessage) -> Option<Vec<u8>> {
    let expressions = rule.value(RULE_EXPRESSIONS)?;
    let (mut is_protocol, mut protocol) = (false, None);
    let mut is_needed = false;
    for expression in attributes(expressions) {
        let data = value(expression.value, 2).unwrap_or_default();
        match text(value(expression.value, 1).unwrap_or_default()).as_str() {
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
    Some(nested(
        RULE_COMPATIBILITY,
        &[
            attribute(1, &u32::from(protocol).to_be_bytes()),
            attribute(2, &flags.to_be_bytes()),
        ],
    ))
}

/// Returns whether `payload` loads the protocol field of the network header.
fn is_protocol_field(family: u8, payload: &[u8]) -> bool {
    let [base, offset, length] = [2, 3, 4].map(|it| number(value(payload, it)));
    let place = if family == IPV6 { 6 } else { 9 };
    (base, offset, length) == (1, place, 1)
}

/// Reads a number in network byte order; 0 if it is absent.
pub(crate) fn number(value: Option<&[u8]>) -> u64 {
    let bytes = value.unwrap_or_default().iter().take(8);
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Description, request type, creating message type, and attributes that the kernel accepts again,
/// by the numbers of `include/uapi/linux/netfilter/nf_tables.h`.
const KINDS: &[(&str, u8, u8, &[u16])] = &[
    ("tables", 1, NEW_TABLE, &[1, 2, 6]),
    ("objects", 19, 18, &[1, 2, 3, 4, 8]),
    ("flow tables", 23, NEW_FLOW_TABLE, &[1, 2, 3]),
    ("chains", 4, NEW_CHAIN, &[1, 3, 4, 5, 7]),
    (
        "sets",
        10,
        NEW_SET,
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18],
    ),
    ("rules", GET_RULE, NEW_RULE, &[1, 2, 4, 7]),
];

const ORDER: [u8; 7] = [
    NEW_TABLE,
    18,
    NEW_FLOW_TABLE,
    NEW_CHAIN,
    NEW_SET,
    NEW_ELEMENTS,
    NEW_RULE,
];

pub(crate) const NEW_TABLE: u8 = 0;
pub(crate) const NEW_CHAIN: u8 = 3;
pub(crate) const NEW_RULE: u8 = 6;
const GET_RULE: u8 = 7;
const NEW_SET: u8 = 9;
const NEW_ELEMENTS: u8 = 12;
const GET_ELEMENTS: u8 = 13;
const NEW_FLOW_TABLE: u8 = 22;

/// `NFTA_TABLE_NAME`; the attribute has the same number in all messages.
const NAME: u16 = 1;
pub(crate) const CHAIN_HOOK: u16 = 4;
const SET_ID: u16 = 10;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
const RULE_COMPATIBILITY: u16 = 5;

/// `NFT_TABLE_F_DORMANT`: the only flag that affects packets.
const DORMANT: u32 = 1;

/// `NFT_SET_ANONYMOUS`: only one rule refers to such a set, which disappears with the rule.
const ANONYMOUS: u32 = 1;

/// `NFPROTO_IPV6`
const IPV6: u8 = 10;

/// Attempts at an unchanged ruleset; the last one is used even if rules changed meanwhile.
const ATTEMPTS: usize = 8;

/// Bytes per transaction.
const TRANSACTION: usize = 1 << 20;
