//! Converts descriptions of tables, sets, chains and rules to netlink messages, each with a text
//! for error messages.

use netlink::Refusal;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use nix::errno::Errno;
use nix::libc::NFT_DATA_VERDICT;

use crate::attributes::{Attributes, value};
use crate::comment::comment;
use crate::expression::ACCEPT;
use crate::raw::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TYPE, DELETE_CHAIN, DELETE_ELEMENTS, DELETE_RULE,
    DELETE_TABLE, ELEMENTS, ELEMENTS_SET, GET_CHAIN, GET_ELEMENTS, GET_GENERATION, GET_RULE,
    GET_SET, GET_TABLE, ITEM, NEW_CHAIN, NEW_ELEMENTS, NEW_RULE, NEW_SET, NEW_TABLE, RULE_CHAIN,
    RULE_EXPRESSIONS, RULE_HANDLE, RULE_USERDATA, RawMessage, SET_DATA_LENGTH, SET_DATA_TYPE,
    SET_EXPRESSION, SET_FLAGS, SET_ID, SET_KEY_LENGTH, SET_KEY_TYPE, SET_NAME, SET_USERDATA, TABLE,
};
use crate::register::u32_of;
use crate::table::{byte_order, type_len, type_number};
use crate::{Chain, ChainKind, Element, Error, Family, Limit, Rule, Set, Table, TargetType};

/// A netlink message and its description for error messages.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The operation and its object: `add rule to chain output`.
    what: String,
    /// Build options that the kernel needs for the message.
    needs: Vec<&'static str>,
    pub flags: u16,
    pub raw: RawMessage,
}

impl Message {
    pub(crate) fn new(what: String, raw: RawMessage) -> Self {
        Self {
            what,
            needs: Vec::new(),
            flags: 0,
            raw,
        }
    }

    pub(crate) fn with(self, flags: u16) -> Self {
        Self { flags, ..self }
    }

    fn needing(mut self, options: impl IntoIterator<Item = &'static str>) -> Self {
        self.needs = options.into_iter().collect();
        self
    }

    /// Returns whether the message deletes objects, which the kernel then has to free.
    pub(crate) fn is_deletion(&self) -> bool {
        [DELETE_TABLE, DELETE_CHAIN, DELETE_RULE, DELETE_ELEMENTS].contains(&self.raw.kind)
    }

    /// Converts the kernel's refusal of this message to an error: [`Error::Unsupported`] if the
    /// reason may be a missing build option, otherwise [`Error::Refused`].
    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        let operation = self.what.clone();
        // The kernel also returns these errors if it was built without an option that the object
        // needs.
        let is_unknown = match refusal.errno {
            Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT => !self.needs.is_empty(),
            Errno::EINVAL => self.needs == [NF_TABLES],
            _ => false,
        };
        if !is_unknown {
            return Error::Refused { operation, refusal };
        }
        let option = self.needs.join(" or ");
        Error::Unsupported { operation, option }
    }
}

/// Returns the request for the generation, a number that changes with every change of rules.
pub(crate) fn get_generation() -> Message {
    let raw = RawMessage::new(GET_GENERATION, 0, Attributes::new());
    Message::new("read the generation of the rules".to_owned(), raw).needing([NF_TABLES])
}

/// Returns the request for all chains of this family, of any program.
pub(crate) fn list_chains(family: Family) -> Message {
    let raw = RawMessage::new(GET_CHAIN, family.number(), Attributes::new());
    Message::new("read chains".to_owned(), raw)
}

/// Returns the request for all rules of a table of any program.
pub(crate) fn list_rules(family: Family, table: &str) -> Message {
    let attributes = Attributes::new().text(TABLE, table);
    let raw = RawMessage::new(GET_RULE, family.number(), attributes);
    Message::new(format!("read rules of table {table}"), raw)
}

impl Table {
    /// Returns the message that creates the table. The message also clears the flag `dormant` of an
    /// existing table, so that the kernel applies its rules.
    pub(crate) fn create(&self) -> Message {
        // In an existing table, flags of 0 clear the flag `dormant`.
        let attributes = self.attributes().number(TABLE_FLAGS, 0);
        self.message(format!("create table {}", self.name), NEW_TABLE, attributes)
            .with(NLM_F_CREATE)
            .needing([self.family.option()])
    }

    /// Returns the message that creates the table with the flag `owner`.
    pub(crate) fn create_owned(&self) -> Message {
        let attributes = self.attributes().number(TABLE_FLAGS, OWNER);
        let what = format!("create table {} with the flag owner", self.name);
        self.message(what, NEW_TABLE, attributes)
            .with(NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Returns the message that deletes the table with its content.
    pub(crate) fn delete(&self) -> Message {
        let what = format!("delete table {}", self.name);
        self.message(what, DELETE_TABLE, self.attributes())
    }

    pub(crate) fn get(&self) -> Message {
        let what = format!("read table {}", self.name);
        self.message(what, GET_TABLE, self.attributes())
    }

    /// Returns the message that creates a set. The caller guarantees that no other set in the
    /// transaction has this `id`.
    pub(crate) fn create_set(&self, set: &Set, id: u32) -> Message {
        let named = self.attributes().text(SET_NAME, set.name);
        let shaped = named.and(&set.shape()).number(SET_ID, id);
        let attributes = shaped.bytes(SET_USERDATA, &byte_order(set));
        let option = (set.target == TargetType::Limit).then_some("CONFIG_NFT_LIMIT");
        self.message(format!("create set {}", set.name), NEW_SET, attributes)
            .with(NLM_F_CREATE)
            .needing(option)
    }

    pub(crate) fn get_set(&self, set: &Set) -> Message {
        let attributes = self.attributes().text(SET_NAME, set.name);
        self.message(format!("read set {}", set.name), GET_SET, attributes)
    }

    pub(crate) fn create_chain(&self, chain: &Chain) -> Message {
        let named = self.chain(&chain.name).and(&chain.shape());
        let (attributes, option) = match chain.base {
            None => (named, None),
            Some(base) => {
                let option = match base.kind {
                    ChainKind::Filter => self.family.option(),
                    ChainKind::Nat => "CONFIG_NFT_NAT",
                };
                (named.number(CHAIN_POLICY, ACCEPT), Some(option))
            }
        };
        let what = format!("create chain {}", chain.name);
        let message = self.message(what, NEW_CHAIN, attributes);
        message.with(NLM_F_CREATE).needing(option)
    }

    /// Returns the message that deletes the chain with its rules.
    pub(crate) fn delete_chain(&self, name: &str) -> Message {
        let what = format!("delete chain {name}");
        self.message(what, DELETE_CHAIN, self.chain(name))
    }

    /// Returns the message that deletes all rules of the chain.
    pub(crate) fn flush_chain(&self, chain: &Chain) -> Message {
        let what = format!("flush chain {}", chain.name);
        self.message(what, DELETE_RULE, self.rules_of(&chain.name))
    }

    /// Returns the message that deletes one rule.
    pub(crate) fn delete_rule(&self, chain: &str, handle: u64) -> Message {
        let attributes = self.rules_of(chain);
        let attributes = attributes.bytes(RULE_HANDLE, &handle.to_be_bytes());
        let what = format!("delete rule {handle} of chain {chain}");
        self.message(what, DELETE_RULE, attributes)
    }

    pub(crate) fn append_rules(&self, chain: &Chain) -> impl Iterator<Item = Message> {
        let rules = chain.rules.iter().zip(chain.identities());
        rules.map(|(rule, identity)| {
            let message = self.add_rule(&chain.name, rule, &identity);
            message.with(NLM_F_CREATE | NLM_F_APPEND)
        })
    }

    /// Returns the message that adds a rule with the comment `text` at the chain's head. If the
    /// caller sets the flag [`NLM_F_APPEND`], the kernel adds the rule at the chain's end.
    pub(crate) fn add_rule(&self, chain: &str, rule: &Rule, text: &str) -> Message {
        let attributes = self.rules_of(chain);
        let attributes = attributes
            .nest(RULE_EXPRESSIONS, &rule.expressions)
            .bytes(RULE_USERDATA, &comment(text));
        self.message(format!("add rule to chain {chain}"), NEW_RULE, attributes)
            .with(NLM_F_CREATE)
            .needing(rule.needs.iter().copied().chain(self.family.rule_option()))
    }

    pub(crate) fn get_chain(&self, chain: &str) -> Message {
        self.message(format!("read chain {chain}"), GET_CHAIN, self.chain(chain))
    }

    pub(crate) fn list_rules(&self, chain: &str) -> Message {
        let what = format!("read rules of chain {chain}");
        self.message(what, GET_RULE, self.rules_of(chain))
    }

    pub(crate) fn add_element(&self, element: &Element) -> Message {
        let attributes = self.elements_of(&element.set, &element.attributes());
        self.message(format!("add {element}"), NEW_ELEMENTS, attributes)
            .with(NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(crate) fn delete_element(&self, element: &Element) -> Message {
        let attributes = self.elements_of(&element.set, &element.key_attribute());
        self.message(format!("delete {element}"), DELETE_ELEMENTS, attributes)
    }

    pub(crate) fn get_element(&self, element: &Element) -> Message {
        let attributes = self.elements_of(&element.set, &element.key_attribute());
        let what = format!("read element of set {}", element.set);
        self.message(what, GET_ELEMENTS, attributes)
    }

    pub(crate) fn list_elements(&self, set: &Set) -> Message {
        let attributes = self.attributes().text(ELEMENTS_SET, set.name);
        let what = format!("read elements of set {}", set.name);
        self.message(what, GET_ELEMENTS, attributes)
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().text(TABLE, self.name)
    }

    fn chain(&self, name: &str) -> Attributes {
        self.attributes().text(CHAIN_NAME, name)
    }

    fn rules_of(&self, chain: &str) -> Attributes {
        self.attributes().text(RULE_CHAIN, chain)
    }

    fn elements_of(&self, set: &str, element: &Attributes) -> Attributes {
        let elements = Attributes::new().nest(ITEM, element);
        let attributes = self.attributes().text(ELEMENTS_SET, set);
        attributes.nest(ELEMENTS, &elements)
    }

    fn message(&self, what: String, kind: u16, attributes: Attributes) -> Message {
        let raw = RawMessage::new(kind, self.family.number(), attributes);
        Message::new(what, raw)
    }
}

impl Set {
    /// Returns the set's shape: the attributes that the kernel cannot change in an existing set.
    fn shape(&self) -> Attributes {
        let key = Attributes::new()
            .number(SET_KEY_TYPE, type_number(&self.key))
            .number(SET_KEY_LENGTH, u32_of(type_len(&self.key)));
        let map = |key: Attributes, kind| key.number(SET_FLAGS, MAP).number(SET_DATA_TYPE, kind);
        let of_length = |map: Attributes, length| map.number(SET_DATA_LENGTH, u32_of(length));
        match &self.target {
            TargetType::None if self.has_ranges => key.number(SET_FLAGS, INTERVAL),
            TargetType::None => key,
            TargetType::Chain => map(key, NFT_DATA_VERDICT),
            TargetType::Values(parts) => of_length(map(key, type_number(parts)), type_len(parts)),
            TargetType::Limit => key.nest(SET_EXPRESSION, &Limit::OF_SETS.expression()),
            TargetType::Count(_) => of_length(map(key, MARK), size_of::<u32>()),
        }
    }

    /// Returns whether `found`, a set in the kernel, has the types of keys and targets that this
    /// description has. Otherwise the table has to be recreated.
    pub(crate) fn fits(&self, found: &RawMessage) -> bool {
        let (shape, found) = (self.shape(), &found.attributes);
        // For a set with chains as targets, the kernel reports a length, but `shape` contains none.
        // So this function does not compare the length of such a set.
        let length = Some(SET_DATA_LENGTH).filter(|_| self.target != TargetType::Chain);
        let kinds = [SET_KEY_TYPE, SET_KEY_LENGTH, SET_FLAGS, SET_DATA_TYPE];
        let mut kinds = kinds.into_iter().chain(length);
        let has_limits = |set| value(set, SET_EXPRESSION).is_some_and(Limit::is_expression);
        has_limits(&shape) == has_limits(found)
            && kinds.all(|kind| value(&shape, kind) == value(found, kind))
    }
}

impl Chain {
    /// Returns the chain's shape: the attributes that the kernel cannot change in an existing
    /// chain.
    pub(crate) fn shape(&self) -> Attributes {
        let Some(base) = self.base else {
            return Attributes::new();
        };
        let hook = Attributes::new()
            .number(HOOK_NUMBER, base.hook as u32)
            .number(HOOK_PRIORITY, base.priority.cast_unsigned());
        let shape = Attributes::new().nest(CHAIN_HOOK, &hook);
        shape.text(CHAIN_TYPE, base.kind.name())
    }

    /// Returns whether `found`, a chain in the kernel, has the hook, priority and type that this
    /// description has. Otherwise the chain or its table has to be recreated.
    pub(crate) fn fits(&self, found: &RawMessage) -> bool {
        let shape = self.shape();
        let mut kinds = [CHAIN_HOOK, CHAIN_TYPE].into_iter();
        kinds.all(|kind| value(&shape, kind) == found.value(kind))
    }
}

const NF_TABLES: &str = "CONFIG_NF_TABLES";

/// `NFTA_TABLE_FLAGS`
pub(crate) const TABLE_FLAGS: u16 = 2;

/// `NFT_TABLE_F_OWNER`
const OWNER: u32 = 2;

/// In this order: `NFTA_HOOK_HOOKNUM`, `NFTA_HOOK_PRIORITY` and `NFTA_HOOK_DEVS`.
pub(crate) const HOOK_NUMBER: u16 = 1;
pub(crate) const HOOK_PRIORITY: u16 = 2;
pub(crate) const HOOK_LINKS: u16 = 4;

/// `NFT_SET_INTERVAL` and `NFT_SET_MAP`
const INTERVAL: u32 = 4;
const MAP: u32 = 8;

/// The type of counts ([`TargetType::Count`]) in nft(8): `mark`, an integer in the host's byte
/// order. The kernel ignores this number.
const MARK: u32 = 19;
