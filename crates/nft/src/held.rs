//! What others have in `nf_tables`: where packets enter, and what becomes of them there.
//!
//! Of a rule no more is understood than takes to say whether it is for everything, or for some
//! link or network: it is not known what a packet meets.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_core::NlasIterator;
use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{
    ChainAttribute, Hook, HookNumber, InetHookNumber, NfTablesMessage,
};

use crate::connection::Connection;
use crate::error::Error;
use crate::message;
use crate::reply::Reply;
use crate::table::Family;

/// A chain as the kernel holds it, whosever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldChain {
    /// Which packets its table sees.
    pub family: Family,
    /// The table's name.
    pub table: String,
    /// Its own name.
    pub name: String,
    /// Packets that the host forwards enter it by themselves.
    pub is_forward: bool,
    /// What becomes of packets at its end; `Drop` or `Accept` where they enter by themselves.
    pub policy: Option<Verdict>,
}

/// A rule as the kernel holds it, whosever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRule {
    /// The chain that it is in.
    pub chain: String,
    /// What becomes of packets for which it holds; `None`: they go on, or are translated.
    pub verdict: Option<Verdict>,
    /// It holds for every packet.
    pub is_unconditional: bool,
    /// It looks packets up in a set.
    pub looks_up: bool,
    compared: Vec<Compared>,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It passes.
    Accept,
    /// It does not, with an answer or without.
    Drop,
    /// Another chain says.
    Chain,
}

/// A value that a part of packets has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Compared {
    what: Part,
    value: Vec<u8>,
}

/// What is in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The name of the link that it came by or leaves by.
    LinkName,
    /// Something in the network header.
    NetworkHeader,
    Other,
}

impl Connection {
    /// Every chain of these families, whosever it is. As `nft list chains`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn chains(&self, families: &[Family]) -> Result<Vec<HeldChain>, Error> {
        let mut chains = Vec::new();
        for family in families {
            let replies = self.socket.dump(message::list_chains(*family))?;
            chains.extend(replies.iter().filter_map(|it| HeldChain::read(*family, it)));
        }
        Ok(chains)
    }

    /// Every rule of the table, whosever it is. As `nft list table`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Unreadable`].
    pub fn rules(&self, family: Family, table: &str) -> Result<Vec<HeldRule>, Error> {
        let replies = self.socket.dump(message::list_rules(family, table))?;
        let rules = replies.iter().filter_map(|reply| match reply {
            Reply::Rule(_, attributes) => Some(HeldRule::read(attributes)),
            _ => None,
        });
        let unreadable = || Error::Unreadable {
            reason: format!("a rule of table {table} is cut short"),
        };
        rules.map(|rule| rule.ok_or_else(unreadable)).collect()
    }

    /// The comments of the table's rules, whosever it is. As `nft list table`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn comments(&self, family: Family, table: &str) -> Result<Vec<String>, Error> {
        let replies = self.socket.dump(message::list_rules(family, table))?;
        let comments = replies.into_iter().filter_map(|reply| match reply {
            Reply::Rule(comment, _) => comment,
            _ => None,
        });
        Ok(comments.collect())
    }
}

impl HeldChain {
    fn read(family: Family, reply: &Reply) -> Option<Self> {
        let Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(message))) =
            reply
        else {
            return None;
        };
        let mut chain = Self {
            family,
            table: String::new(),
            name: String::new(),
            is_forward: false,
            policy: None,
        };
        for attribute in &message.attributes {
            match attribute {
                ChainAttribute::Table(name) => chain.table.clone_from(name),
                ChainAttribute::Name(name) => chain.name.clone_from(name),
                ChainAttribute::Hook(hook) => chain.is_forward = hook.contains(&FORWARD),
                ChainAttribute::Policy(DROP) => chain.policy = Some(Verdict::Drop),
                ChainAttribute::Policy(_) => chain.policy = Some(Verdict::Accept),
                _ => {}
            }
        }
        Some(chain)
    }
}

impl HeldRule {
    /// It is for packets that come by the link called `name`, or leave by it; `+` and `*` at the end
    /// of a name, as rules may have them, are understood.
    pub fn is_for_link(&self, name: &str) -> bool {
        self.compared.iter().any(|compared| {
            let whole = compared.value.iter().position(|byte| *byte == 0);
            compared.what == Part::LinkName
                && match whole.and_then(|end| compared.value.get(..end)) {
                    Some(whole) => whole == name.as_bytes(),
                    None => name.as_bytes().starts_with(&compared.value),
                }
        })
    }

    /// It is for packets from or to `network`, one that contains it, or an address in it.
    pub fn is_for_network(&self, network: IpNetwork) -> bool {
        self.compared.iter().any(|it| {
            it.what == Part::NetworkHeader && {
                let address = address_of(&it.value, network);
                address.is_some_and(|it| network.contains(it) || contains(it, network))
            }
        })
    }

    /// `None` where an attribute is cut short.
    fn read(attributes: &[u8]) -> Option<Self> {
        let mut rule = Self {
            chain: String::new(),
            verdict: None,
            is_unconditional: true,
            looks_up: false,
            compared: Vec::new(),
        };
        let mut loaded = Part::Other;
        for (kind, value) in pairs(attributes)? {
            match kind {
                RULE_CHAIN => rule.chain = text(value),
                RULE_EXPRESSIONS => {
                    for (_, expression) in pairs(value)? {
                        rule.read_expression(expression, &mut loaded)?;
                    }
                }
                _ => {}
            }
        }
        Some(rule)
    }

    fn read_expression(&mut self, expression: &[u8], loaded: &mut Part) -> Option<()> {
        let parts = pairs(expression)?;
        let name = find(&parts, EXPRESSION_NAME).map(text).unwrap_or_default();
        let parts = pairs(find(&parts, EXPRESSION_DATA).unwrap_or_default())?;
        match name.as_str() {
            "immediate" => self.verdict = verdict(&parts).or(self.verdict),
            "reject" => self.verdict = Some(Verdict::Drop),
            // As iptables has it.
            "target" => {
                let is_reject = find(&parts, TARGET_NAME).map(text).as_deref() == Some("REJECT");
                self.verdict = is_reject.then_some(Verdict::Drop).or(self.verdict);
            }
            "counter" | "log" => {}
            other => {
                self.is_unconditional = false;
                self.read_condition(other, &parts, loaded);
            }
        }
        Some(())
    }

    fn read_condition(&mut self, name: &str, parts: &[(u16, &[u8])], loaded: &mut Part) {
        let number = |kind| {
            find(parts, kind)?
                .first_chunk()
                .map(|it| u32::from_be_bytes(*it))
        };
        match name {
            "meta" => {
                let is_name = number(META_KEY).is_some_and(|key| LINK_NAMES.contains(&key));
                *loaded = if is_name { Part::LinkName } else { Part::Other };
            }
            "payload" => {
                let is_header = number(PAYLOAD_BASE) == Some(NETWORK_HEADER);
                *loaded = if is_header {
                    Part::NetworkHeader
                } else {
                    Part::Other
                };
            }
            // It narrows what is loaded.
            "bitwise" => {}
            "cmp" if number(COMPARE_OPERATOR) == Some(EQUAL) => {
                let value = find(parts, COMPARE_DATA).and_then(pairs);
                let value = value.and_then(|it| find(&it, DATA_VALUE).map(<[u8]>::to_vec));
                let what = *loaded;
                self.compared
                    .extend(value.map(|value| Compared { what, value }));
            }
            "lookup" => self.looks_up = true,
            _ => *loaded = Part::Other,
        }
    }
}

fn verdict(immediate: &[(u16, &[u8])]) -> Option<Verdict> {
    let data = pairs(find(immediate, IMMEDIATE_DATA)?)?;
    let verdict = pairs(find(&data, DATA_VERDICT)?)?;
    let code = find(&verdict, VERDICT_CODE)?.first_chunk()?;
    match i32::from_be_bytes(*code) {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        JUMP | GOTO => Some(Verdict::Chain),
        _ => None,
    }
}

/// The address that a value of the network header is, or begins: prefixes of whole bytes are
/// compared without the rest.
fn address_of(value: &[u8], like: IpNetwork) -> Option<IpAddr> {
    let len = if like.is_ipv4() { 4 } else { 16 };
    // One byte is as likely the number of a protocol.
    if !(2..=len).contains(&value.len()) {
        return None;
    }
    let mut bytes = value.to_vec();
    bytes.resize(len, 0);
    let address = match like {
        IpNetwork::V4(_) => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        IpNetwork::V6(_) => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    address.filter(|it| !it.is_unspecified())
}

/// `address` is that of a network which contains `network`.
fn contains(address: IpAddr, network: IpNetwork) -> bool {
    let wider =
        (1..=network.prefix()).filter_map(|prefix| IpNetwork::new(network.ip(), prefix).ok());
    wider.into_iter().any(|it| it.network() == address)
}

/// The attributes that `bytes` consist of; `None` where one is cut short.
fn pairs(bytes: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut pairs = Vec::new();
    for attribute in NlasIterator::new(bytes) {
        let attribute = attribute.ok()?;
        let (kind, end) = (attribute.kind(), usize::from(attribute.length()));
        pairs.push((kind, attribute.into_inner().get(ATTRIBUTE_HEADER..end)?));
    }
    Some(pairs)
}

fn find<'a>(pairs: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    pairs
        .iter()
        .find(|(it, _)| *it == kind)
        .map(|(_, value)| *value)
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

const FORWARD: Hook = Hook::Number(HookNumber::Inet(InetHookNumber::Forward));

/// `NF_DROP`
const DROP: u32 = 0;

/// `NFT_JUMP` and `NFT_GOTO` in `include/uapi/linux/netfilter/nf_tables.h`, as all below.
const JUMP: i32 = -3;
const GOTO: i32 = -4;

/// `struct nlattr`, in bytes.
const ATTRIBUTE_HEADER: usize = 4;

/// `NFTA_RULE_CHAIN` and `NFTA_RULE_EXPRESSIONS`
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;

/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;

/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT` and `NFTA_VERDICT_CODE`
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;

/// `NFTA_TARGET_NAME` in `include/uapi/linux/netfilter/nf_tables_compat.h`
const TARGET_NAME: u16 = 1;

/// `NFTA_META_KEY`, `NFT_META_IIFNAME` and `NFT_META_OIFNAME`
const META_KEY: u16 = 2;
const LINK_NAMES: [u32; 2] = [6, 7];

/// `NFTA_PAYLOAD_BASE` and `NFT_PAYLOAD_NETWORK_HEADER`
const PAYLOAD_BASE: u16 = 2;
const NETWORK_HEADER: u32 = 1;

/// `NFTA_CMP_OP`, `NFT_CMP_EQ`, `NFTA_CMP_DATA` and `NFTA_DATA_VALUE`
const COMPARE_OPERATOR: u16 = 2;
const EQUAL: u32 = 0;
const COMPARE_DATA: u16 = 3;
const DATA_VALUE: u16 = 1;

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
