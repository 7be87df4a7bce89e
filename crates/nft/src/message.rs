//! Converts descriptions to messages, each with the words of its error message.

use netlink::Refusal;
use netlink_packet_core::{DefaultNla, NLA_F_NESTED, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, GenMessage, Hook as HookAttribute, ListAttribute,
    NfTablesMessage, RuleAttribute, RuleMessage, SetAttribute, SetElementAttribute, SetElementList,
    SetElementMessage, SetFlags, SetMessage, TableAttribute, TableFlags, TableMessage,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use nix::errno::Errno;

use crate::element::{Element, comment};
use crate::error::Error;
use crate::limit::Limit;
use crate::register::u32_of;
use crate::rule::Rule;
use crate::table::{
    Chain, ChainKind, Family, Set, Table, TargetType, byte_order, type_len, type_number,
};

/// A message and its description.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub operation: Operation,
    pub flags: u16,
    pub inner: NetfilterMessage,
}

/// Description of a message for error messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operation {
    what: String,
    /// Build options that the kernel needs for the message.
    needs: Vec<&'static str>,
}

impl Operation {
    pub fn refused(self, refusal: Refusal) -> Error {
        let operation = self.what;
        let is_unknown = match refusal.errno {
            Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT => !self.needs.is_empty(),
            Errno::EINVAL => self.needs == [NF_TABLES],
            _ => false,
        };
        if !is_unknown {
            return Error::refused(operation, refusal);
        }
        let option = self.needs.join(" or ");
        Error::Unsupported { operation, option }
    }
}

/// Begins a transaction for rules of `generation`.
pub(crate) fn batch_begin(generation: u32) -> Message {
    let expected = DefaultNla::new(BATCH_GENERATION, generation.to_be_bytes().to_vec());
    control(ControlMessage::Other {
        message_type: BATCH_BEGIN,
        attributes: vec![expected],
    })
}

/// Begins a transaction for rules of any generation.
pub(crate) fn batch_begin_of_any() -> Message {
    control(ControlMessage::BatchBegin)
}

pub(crate) fn batch_end() -> Message {
    control(ControlMessage::BatchEnd)
}

fn control(message: ControlMessage) -> Message {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, SUBSYSTEM);
    Message {
        operation: Operation {
            what: "change the rules".to_owned(),
            needs: Vec::new(),
        },
        flags: 0,
        inner: NetfilterMessage::new(header, message),
    }
}

/// Returns the request for the current generation of all rules.
pub(crate) fn get_generation() -> Message {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
    let message = NfTablesMessage::GetGen(GenMessage { attributes: vec![] });
    Message {
        operation: Operation {
            what: "read the generation of the rules".to_owned(),
            needs: vec![NF_TABLES],
        },
        flags: 0,
        inner: NetfilterMessage::new(header, message),
    }
}

/// Returns the request for all chains of this family, of any program.
pub(crate) fn list_chains(family: Family) -> Message {
    let message = NfTablesMessage::GetChain(ChainMessage { attributes: vec![] });
    of_family(family, "read chains".to_owned(), message)
}

/// Returns the request for all rules of any table.
pub(crate) fn list_rules(family: Family, table: &str) -> Message {
    let attributes = vec![RuleAttribute::Table(table.to_owned())];
    let message = NfTablesMessage::GetRule(RuleMessage { attributes });
    of_family(family, format!("read rules of table {table}"), message)
}

fn of_family(family: Family, what: String, message: NfTablesMessage) -> Message {
    let header = NetfilterHeader::new(family.protocol(), 0, 0);
    Message::new(what, NetfilterMessage::new(header, message))
}

impl Table {
    pub(crate) fn create(&self) -> Message {
        // For an existing table this clears the dormant flag.
        let awake = TableAttribute::Flags(TableFlags::empty());
        let message = NfTablesMessage::NewTable(self.attributes(Some(awake)));
        self.message(format!("create table {}", self.name), message)
            .with(NLM_F_CREATE)
            .needing([self.family.option()])
    }

    /// Deletes the table with its content.
    pub(crate) fn delete(&self) -> Message {
        let message = NfTablesMessage::DeleteTable(self.attributes(None));
        self.message(format!("delete table {}", self.name), message)
    }

    pub(crate) fn get(&self) -> Message {
        let message = NfTablesMessage::GetTable(self.attributes(None));
        self.message(format!("read table {}", self.name), message)
    }

    pub(crate) fn create_set(&self, set: &Set, id: u32) -> Message {
        let mut attributes = self.set(set);
        attributes.extend(set.shape());
        attributes.extend([
            SetAttribute::Id(id),
            SetAttribute::UserData(byte_order(set)),
        ]);
        let option = (set.target == TargetType::Limit).then_some("CONFIG_NFT_LIMIT");
        let message = NfTablesMessage::NewSet(SetMessage { attributes });
        self.message(format!("create set {}", set.name), message)
            .with(NLM_F_CREATE)
            .needing(option)
    }

    pub(crate) fn get_set(&self, set: &Set) -> Message {
        let attributes = self.set(set);
        let message = NfTablesMessage::GetSet(SetMessage { attributes });
        self.message(format!("read set {}", set.name), message)
    }

    pub(crate) fn create_chain(&self, chain: &Chain) -> Message {
        let mut attributes = self.chain(&chain.name);
        attributes.extend(chain.shape());
        attributes.extend(chain.base.map(|_| ChainAttribute::Policy(ACCEPT)));
        let option = chain.base.map(|base| match base.kind {
            ChainKind::Filter => self.family.option(),
            ChainKind::Nat => "CONFIG_NFT_NAT",
        });
        let message = NfTablesMessage::NewChain(ChainMessage { attributes });
        self.message(format!("create chain {}", chain.name), message)
            .with(NLM_F_CREATE)
            .needing(option)
    }

    /// Deletes the chain with its rules.
    pub(crate) fn delete_chain(&self, name: &str) -> Message {
        let attributes = self.chain(name);
        let message = NfTablesMessage::DeleteChain(ChainMessage { attributes });
        self.message(format!("delete chain {name}"), message)
    }

    /// Deletes all rules of the chain.
    pub(crate) fn flush_chain(&self, chain: &Chain) -> Message {
        let message = NfTablesMessage::DeleteRule(self.rules_of(&chain.name));
        self.message(format!("flush chain {}", chain.name), message)
    }

    pub(crate) fn append_rules(&self, chain: &Chain) -> impl Iterator<Item = Message> {
        let rules = chain.rules.iter().zip(chain.identities());
        rules.map(|(rule, identity)| self.append_rule(chain, (rule, &identity)))
    }

    fn append_rule(&self, chain: &Chain, (rule, identity): (&Rule, &str)) -> Message {
        let mut message = self.rules_of(&chain.name);
        message.attributes.extend([
            RuleAttribute::Expressions(rule.expressions()),
            RuleAttribute::UserData(comment(identity)),
        ]);
        let message = NfTablesMessage::NewRule(message);
        self.message(format!("add rule to chain {}", chain.name), message)
            .with(NLM_F_CREATE | NLM_F_APPEND)
            .needing(rule.needs().chain(self.family.rule_option()))
    }

    pub(crate) fn get_chain(&self, chain: &str) -> Message {
        let attributes = self.chain(chain);
        let message = NfTablesMessage::GetChain(ChainMessage { attributes });
        self.message(format!("read chain {chain}"), message)
    }

    pub(crate) fn list_rules(&self, chain: &str) -> Message {
        let message = NfTablesMessage::GetRule(self.rules_of(chain));
        self.message(format!("read rules of chain {chain}"), message)
    }

    pub(crate) fn add_element(&self, element: &Element) -> Message {
        let attributes = Some(element.attributes());
        let message = NfTablesMessage::NewSetElement(self.elements_of(&element.set, attributes));
        self.message(format!("add {element}"), message)
            .with(NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(crate) fn delete_element(&self, element: &Element) -> Message {
        let key = Some(vec![element.key_attribute()]);
        let message = NfTablesMessage::DeleteSetElement(self.elements_of(&element.set, key));
        self.message(format!("delete {element}"), message)
    }

    pub(crate) fn get_element(&self, element: &Element) -> Message {
        let key = Some(vec![element.key_attribute()]);
        let message = NfTablesMessage::GetSetElement(self.elements_of(&element.set, key));
        self.message(format!("read element of set {}", element.set), message)
    }

    pub(crate) fn list_elements(&self, set: &Set) -> Message {
        let message = NfTablesMessage::GetSetElement(self.elements_of(set.name, None));
        self.message(format!("read elements of set {}", set.name), message)
    }

    fn attributes(&self, flags: Option<TableAttribute>) -> TableMessage {
        let mut attributes = vec![TableAttribute::Name(self.name.to_owned())];
        attributes.extend(flags);
        TableMessage { attributes }
    }

    fn set(&self, set: &Set) -> Vec<SetAttribute> {
        vec![
            SetAttribute::Table(self.name.to_owned()),
            SetAttribute::Name(set.name.to_owned()),
        ]
    }

    fn chain(&self, name: &str) -> Vec<ChainAttribute> {
        vec![
            ChainAttribute::Table(self.name.to_owned()),
            ChainAttribute::Name(name.to_owned()),
        ]
    }

    fn rules_of(&self, chain: &str) -> RuleMessage {
        RuleMessage {
            attributes: vec![
                RuleAttribute::Table(self.name.to_owned()),
                RuleAttribute::Chain(chain.to_owned()),
            ],
        }
    }

    fn elements_of(
        &self,
        set: &str,
        element: Option<Vec<SetElementAttribute>>,
    ) -> SetElementMessage {
        let mut attributes = vec![
            SetElementList::Table(self.name.to_owned()),
            SetElementList::Set(set.to_owned()),
        ];
        let elements = element.map(|it| SetElementList::Elements(vec![ListAttribute::Element(it)]));
        attributes.extend(elements);
        SetElementMessage { attributes }
    }

    fn message(&self, what: String, message: NfTablesMessage) -> Message {
        of_family(self.family, what, message)
    }
}

impl Set {
    /// Returns the attributes that the kernel cannot change in an existing set.
    pub(crate) fn shape(&self) -> Vec<SetAttribute> {
        let mut shape = vec![
            SetAttribute::KeyType(type_number(&self.key)),
            SetAttribute::KeyLen(u32_of(type_len(&self.key))),
        ];
        shape.extend(match &self.target {
            TargetType::None => Vec::new(),
            TargetType::Chain => vec![
                SetAttribute::Flags(SetFlags::Map),
                SetAttribute::DataType(VERDICT),
            ],
            TargetType::Values(parts) => vec![
                SetAttribute::Flags(SetFlags::Map),
                SetAttribute::DataType(type_number(parts)),
                SetAttribute::DataLen(u32_of(type_len(parts))),
            ],
            TargetType::Limit => vec![set_of_limits()],
            TargetType::Count(_) => vec![
                SetAttribute::Flags(SetFlags::Map),
                SetAttribute::DataType(MARK),
                SetAttribute::DataLen(u32_of(size_of::<u32>())),
            ],
        });
        shape
    }
}

/// Returns the attribute that makes a set one of limits; the library has none.
pub(crate) fn set_of_limits() -> SetAttribute {
    let expression = Limit::OF_SETS.expression();
    SetAttribute::Other(DefaultNla::new(SET_EXPRESSION | NLA_F_NESTED, expression))
}

impl Chain {
    /// Returns the attributes that the kernel cannot change in an existing chain.
    pub(crate) fn shape(&self) -> Vec<ChainAttribute> {
        let attributes = self.base.iter().flat_map(|base| {
            [
                ChainAttribute::Hook(vec![
                    HookAttribute::Number(base.hook.number().into()),
                    HookAttribute::Priority(base.priority.cast_unsigned()),
                ]),
                ChainAttribute::Type(base.kind.name().to_owned()),
            ]
        });
        attributes.collect()
    }
}

impl Message {
    pub(crate) fn new(what: String, inner: NetfilterMessage) -> Self {
        let needs = Vec::new();
        Self {
            operation: Operation { what, needs },
            flags: 0,
            inner,
        }
    }

    fn with(self, flags: u16) -> Self {
        Self { flags, ..self }
    }

    pub(crate) fn needing(mut self, options: impl IntoIterator<Item = &'static str>) -> Self {
        self.operation.needs = options.into_iter().collect();
        self
    }
}

const NF_TABLES: &str = "CONFIG_NF_TABLES";

/// `NFNL_MSG_BATCH_BEGIN`
const BATCH_BEGIN: u8 = 16;

/// `NFNL_BATCH_GENID`
const BATCH_GENERATION: u16 = 1;

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;

/// `NF_ACCEPT`
pub(crate) const ACCEPT: u32 = 1;

/// `NFTA_SET_EXPR`
const SET_EXPRESSION: u16 = 17;

/// The number of type `mark` in nft(8), a number in the host's order; the kernel does not look at it.
const MARK: u32 = 19;

/// `NFT_DATA_VERDICT`
pub(crate) const VERDICT: u32 = 0xffff_ff00;
