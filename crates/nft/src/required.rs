//! Adds rules of this suite to chains of other programs, and finds out whether they still exist.
//!
//! If one base chain drops a packet, the packet is lost, even if other base chains of the hook
//! accept it. So if a chain of another program drops a packet, only a rule in that chain can let
//! the packet pass.
//!
//! `iptables-save | iptables-restore` drops the user data of rules, which contains their comments,
//! and may write their expressions in another form. So this module identifies a rule by its effect.

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use crate::attributes::{Attributes, number, text, value};
use crate::exchange::Committed;
use crate::expression::{
    ACCEPT, BITWISE_MASK, BITWISE_XOR, DATA_VALUE, Expression, JUMP, VERDICT_CHAIN, VERDICT_CODE,
    compared, parts, verdict_of,
};
use crate::field::{META_KEY, META_MARK};
use crate::raw::{RULE_EXPRESSIONS, RULE_HANDLE};
use crate::update::until_current;
use crate::{BaseChain, Chain, Connection, Error, Family, Message, Rule, Table, Updated};

/// Chains and rules that a table of another program has to contain. [`Connection::ensure_required`]
/// adds the missing ones.
#[derive(Debug, Clone)]
pub struct RequiredRules {
    /// The table's family.
    pub family: Family,
    /// The table's name.
    pub table: &'static str,
    /// The chains that this table has to contain, each with its rules. A chain may have none.
    pub chains: Vec<RequiredChain>,
    /// Returns how an added rule compares the firewall mark. This crate calls the function only if
    /// such a rule is missing.
    pub comparison: fn() -> Comparison,
}

/// How a rule compares the firewall mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// By expressions of `nf_tables`.
    Native,
    /// By the match `mark` of iptables. iptables before 1.8.8 reads no other comparison: it saves
    /// and restores such a rule without its condition.
    Iptables,
}

/// A chain to which this crate adds rules. The chain and its other rules stay as they are.
#[derive(Debug, Clone)]
pub struct RequiredChain {
    /// The chain's name.
    pub name: String,
    /// The hook of a base chain, and `None` for any other chain. If the chain does not exist, this
    /// crate creates it. A base chain then has the policy `accept`.
    pub base: Option<BaseChain>,
    /// Rules that the chain has to contain. This crate adds jumps at the chain's head and accepting
    /// rules at the chain's end, because accepted packets would not reach a later jump.
    pub rules: Vec<RequiredRule>,
}

/// A rule that a chain of another program has to contain, identified by its effect on packets.
#[derive(Debug, Clone)]
pub struct RequiredRule {
    effect: Effect,
    comment: &'static str,
}

/// A rule's effect on packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The rule sends all packets to the chain of this name.
    Jump(String),
    /// The rule accepts packets whose firewall mark has all of these bits. Without bits, it accepts
    /// all packets.
    AcceptMarked(u32),
}

/// A rule that a chain has.
struct Found {
    /// The rule's effect; `None` if [`Effect`] cannot describe it.
    effect: Option<Effect>,
    comment: String,
    handle: u64,
}

impl RequiredRule {
    /// Describes a jump at the chain's head, which sends all packets to the chain `to`.
    pub fn jump(to: &str, comment: &'static str) -> Self {
        let effect = Effect::Jump(to.to_owned());
        Self { effect, comment }
    }

    /// Describes a rule at the chain's end, which accepts packets whose firewall mark has all of
    /// these bits.
    pub fn accept_marked(bits: u32, comment: &'static str) -> Self {
        let effect = Effect::AcceptMarked(bits);
        Self { effect, comment }
    }

    fn message(&self, required: &RequiredRules, chain: &str) -> Message {
        let rule = Rule::new(self.comment);
        let (rule, place) = match &self.effect {
            Effect::Jump(to) => (rule.counted().jump(to), 0),
            Effect::AcceptMarked(bits) => {
                let marked = match (required.comparison)() {
                    Comparison::Native => rule.when_marked(*bits),
                    Comparison::Iptables => rule.with(&match_of_mark(*bits)),
                };
                (marked.counted().accept(), NLM_F_APPEND)
            }
        };
        let message = required.as_table().add_rule(chain, &rule, self.comment);
        message.with(NLM_F_CREATE | place)
    }

    fn describe(&self) -> String {
        match &self.effect {
            Effect::Jump(to) => format!("the jump to {to}"),
            Effect::AcceptMarked(bits) => format!("the rule that accepts mark {bits:#x}/{bits:#x}"),
        }
    }
}

impl Connection {
    /// Adds the missing rules of `required`, and creates their table and chains if necessary.
    /// Deletes rules of this crate that lost their condition ([`Comparison::Iptables`]). Returns
    /// [`Updated::Rules`] if it changed anything, else [`Updated::Nothing`].
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unsupported`], [`Error::Owned`] and [`Error::Busy`]: nothing
    /// was changed.
    pub fn ensure_required(&self, required: &RequiredRules) -> Result<Updated, Error> {
        let mut updated = Updated::Nothing;
        until_current(|| {
            let generation = self.generation()?;
            let messages: Vec<_> = self.lacking(required)?.into_iter().map(|it| it.1).collect();
            if messages.is_empty() {
                // After an attempt that was outdated, another process has added the rules.
                updated = Updated::Nothing;
                return Ok(Committed::Yes);
            }
            updated = Updated::Rules;
            self.commit(&required.as_table(), &messages, generation)
        })?;
        Ok(updated)
    }

    /// Returns a text for the operator about each table, chain and rule that
    /// [`Self::ensure_required`] would add or delete.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn missing_required(&self, required: &RequiredRules) -> Result<Vec<String>, Error> {
        let lacking = self.lacking(required)?.into_iter();
        Ok(lacking.map(|(what, _)| what).collect())
    }

    /// Returns a text for the operator about each missing table, chain and rule, and the netlink
    /// message that creates it, and the same for each rule to delete. The messages are in the order
    /// in which the kernel accepts them.
    fn lacking(&self, required: &RequiredRules) -> Result<Vec<(String, Message)>, Error> {
        let table = required.as_table();
        let name = format!("table {} {}", table.family.name(), table.name);
        let (mut created, mut added) = (Vec::new(), Vec::new());
        for chain in &required.chains {
            let found = self.rules(required, &chain.name)?;
            let missing = chain.missing(&found);
            let of_chain = format!("chain {} of nf_tables {name}", chain.name);
            // If the chain has rules to contain, and all of them exist, the chain also exists and
            // need not be looked up.
            if (chain.rules.is_empty() || !missing.is_empty())
                && !self.has_chain(&table, &chain.name)?
            {
                created.push((format!("{of_chain} is missing"), chain.create(&table)));
            }
            added.extend(chain.open(&found).map(|it| {
                let what = format!(
                    "{of_chain} accepts all packets: a rule lost its condition, as by iptables-restore before 1.8.8"
                );
                (what, table.delete_rule(&chain.name, it.handle))
            }));
            added.extend(missing.into_iter().map(|it| {
                let what = format!("{of_chain} lacks {}", it.describe());
                (what, it.message(required, &chain.name))
            }));
        }
        if !created.is_empty() && !self.exists(&table)? {
            created.insert(0, (format!("nf_tables {name} is missing"), table.create()));
        }
        created.append(&mut added);
        Ok(created)
    }

    /// Returns whether the kernel's table has a chain of this name. The description `table` need
    /// not contain the chain.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn has_chain(&self, table: &Table, chain: &str) -> Result<bool, Error> {
        Ok(self.find(table.get_chain(chain))?.is_some())
    }

    /// Returns the rules of a chain, in their order.
    fn rules(&self, required: &RequiredRules, chain: &str) -> Result<Vec<Found>, Error> {
        let rules = self.dump(&required.as_table().list_rules(chain))?;
        let found = rules.iter().map(|rule| {
            let expressions = rule.value(RULE_EXPRESSIONS).unwrap_or_default();
            Found {
                effect: Effect::read(expressions),
                comment: rule
                    .rule_comment()
                    .or_else(|| comment_of_iptables(expressions))
                    .unwrap_or_default(),
                handle: rule.number(RULE_HANDLE),
            }
        });
        Ok(found.collect())
    }
}

impl RequiredRules {
    fn as_table(&self) -> Table {
        Table::of_others(self.family, self.table)
    }
}

impl RequiredChain {
    /// Returns those of the chain's described rules that the kernel lacks. `found` are the rules
    /// that the kernel's chain has. A jump also counts as missing if one of the described accepting
    /// rules precedes it in the chain, because accepted packets would not reach the jump.
    fn missing(&self, found: &[Found]) -> Vec<&RequiredRule> {
        let is_wanted = |it: &Found| {
            let mut rules = self.rules.iter();
            let accepts = matches!(it.effect, Some(Effect::AcceptMarked(_)));
            accepts && rules.any(|rule| Some(&rule.effect) == it.effect.as_ref())
        };
        let accepting = found.iter().position(is_wanted);
        let is_there = |rule: &&RequiredRule| {
            let end = match rule.effect {
                Effect::Jump(_) => accepting.unwrap_or(found.len()),
                Effect::AcceptMarked(_) => found.len(),
            };
            let mut found = found.iter().take(end);
            found.any(|it| it.effect.as_ref() == Some(&rule.effect))
        };
        self.rules.iter().filter(|it| !is_there(it)).collect()
    }

    /// Returns the rules that accept all packets, although they have the comment of a described
    /// rule.
    fn open<'f>(&self, found: &'f [Found]) -> impl Iterator<Item = &'f Found> {
        let is_ours = |it: &&Found| self.rules.iter().any(|rule| rule.comment == it.comment);
        let open = found.iter();
        open.filter(|it| it.effect == Some(Effect::AcceptMarked(0)))
            .filter(is_ours)
    }

    fn create(&self, table: &Table) -> Message {
        table.create_chain(&Chain {
            name: self.name.clone(),
            base: self.base,
            rules: Vec::new(),
        })
    }
}

impl Effect {
    /// Reads the effect of a rule that nft(8), any version of iptables-nft or this crate wrote.
    /// Returns `None` for an effect that [`Effect`] cannot describe. `expressions` are the rule's
    /// encoded expressions.
    pub fn read(expressions: &[u8]) -> Option<Self> {
        let (mut mask, mut marked, mut effect) = (None, None, None);
        for (name, data) in parts(expressions) {
            match name.as_str() {
                "counter" => {}
                "match" if text(value(data, MATCH_NAME)?) == "comment" => {}
                "match" => marked = Some(marked_for_iptables(data)?),
                "meta" if number(value(data, META_KEY)) == META_MARK.into() => {
                    mask = Some(u32::MAX);
                }
                "bitwise" if mask.is_some() => mask = Some(mask_of(data)?),
                "cmp" => {
                    let bits = native(compared(data)?)?;
                    marked = Some(mask).filter(|it| *it == Some(bits))?;
                }
                "immediate" => effect = Some(verdict(verdict_of(data)?, marked)?),
                _ => return None,
            }
        }
        effect
    }
}

/// Returns the effect of a rule with this verdict. If the rule compares the firewall mark, `marked`
/// contains the bits that the mark must have. A jump without this comparison is a [`Effect::Jump`],
/// and `accept` is a [`Effect::AcceptMarked`]. Returns `None` for other rules.
fn verdict(verdict: &[u8], marked: Option<u32>) -> Option<Effect> {
    let code = u32::try_from(number(value(verdict, VERDICT_CODE))).ok()?;
    match (code, marked) {
        (JUMP, None) => Some(Effect::Jump(text(value(verdict, VERDICT_CHAIN)?))),
        (ACCEPT, marked) => Some(Effect::AcceptMarked(marked.unwrap_or(0))),
        _ => None,
    }
}

/// Returns the bits that the expression `bitwise` keeps. Returns `None` if the expression also
/// flips bits, or if it cannot be parsed.
fn mask_of(bitwise: &[u8]) -> Option<u32> {
    let [mask, flipped] = [BITWISE_MASK, BITWISE_XOR]
        .map(|kind| value(value(bitwise, kind)?, DATA_VALUE).and_then(native));
    mask.filter(|_| flipped == Some(0))
}

/// Returns the iptables match `-m mark --mark BITS/BITS`, revision 1: `struct xt_mark_mtinfo1` with
/// the mark, the mask, `invert`, and the padding to a multiple of eight bytes.
fn match_of_mark(bits: u32) -> Expression {
    let bits = bits.to_ne_bytes();
    let info = [bits, bits, [0; 4], [0; 4]].concat();
    let data = Attributes::new().text(MATCH_NAME, "mark");
    Expression::new(
        "match",
        data.number(MATCH_REVISION, 1).bytes(MATCH_INFO, &info),
    )
}

/// Returns the text of the iptables match `-m comment`; `None` if there is none.
fn comment_of_iptables(expressions: &[u8]) -> Option<String> {
    let mut matches = parts(expressions)
        .filter(|it| it.0 == "match")
        .map(|it| it.1);
    let comment =
        matches.find(|it| value(it, MATCH_NAME).is_some_and(|name| text(name) == "comment"))?;
    let text = value(comment, MATCH_INFO)?.split(|it| *it == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Returns the bits of the iptables match `-m mark --mark BITS/BITS` (`struct xt_mark_mtinfo1`:
/// mark, mask, invert). Returns `None` for any other match.
fn marked_for_iptables(data: &[u8]) -> Option<u32> {
    let is_of_marks = text(value(data, MATCH_NAME)?) == "mark";
    let info = value(data, MATCH_INFO).filter(|_| is_of_marks)?;
    let [marked, kept] = [info.get(..4)?, info.get(4..8)?].map(native);
    let is_inverted = *info.get(8)? != 0;
    marked.filter(|_| marked == kept && !is_inverted)
}

fn native(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// In this order: `NFTA_MATCH_NAME`, `NFTA_MATCH_REV` and `NFTA_MATCH_INFO`.
pub(crate) const MATCH_NAME: u16 = 1;
const MATCH_REVISION: u16 = 2;
const MATCH_INFO: u16 = 3;
