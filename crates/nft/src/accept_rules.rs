//! Rules that accept packets of a single address, in chains of other programs.
//!
//! The Go plugin `firewall` (containernetworking/plugins) adds two such rules for each address of a
//! container. One rule accepts packets from the address. The other rule accepts packets of
//! established connections to the address. No comment identifies these rules, so this module
//! recognizes them by their expressions.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::IpVersion;

use crate::attributes::{number, text, value};
use crate::exchange::Committed;
use crate::expression::{ACCEPT, VERDICT_CODE, compared, parts, verdict_of};
use crate::field::{PAYLOAD_BASE, PAYLOAD_OFFSET, Place};
use crate::raw::{RULE_EXPRESSIONS, RULE_HANDLE};
use crate::required::MATCH_NAME;
use crate::rule::Side;
use crate::update::until_current;
use crate::{Connection, Error, Family, Field, Table, register};

impl Connection {
    /// Deletes the two kinds of rules that the Go plugin `firewall` adds to a chain in the table
    /// `filter` of iptables: rules that accept all packets from one of `addresses`, and rules that
    /// accept packets to one of `addresses` under a condition of the iptables match `conntrack`.
    /// Other rules stay. Does nothing if the table or chain does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unsupported`], [`Error::Owned`] and [`Error::Busy`]: no rule
    /// was deleted.
    pub fn delete_accept_rules(
        &self,
        family: Family,
        chain: &str,
        addresses: &[IpAddr],
    ) -> Result<(), Error> {
        let table = filter(family);
        until_current(|| {
            let generation = self.generation()?;
            let rules = self.dump(&table.list_rules(chain))?;
            let meant = rules.iter().filter(|rule| {
                let admitted = rule.value(RULE_EXPRESSIONS).and_then(admitted);
                admitted.is_some_and(|(it, _)| addresses.contains(&it))
            });
            let messages = meant.map(|it| table.delete_rule(chain, it.number(RULE_HANDLE)));
            let messages: Vec<_> = messages.collect();
            if messages.is_empty() {
                return Ok(Committed::Yes);
            }
            self.commit(&table, &messages, generation)
        })
    }

    /// Returns the addresses for which `chain` in the table `filter` of iptables contains both
    /// kinds of rules that [`Self::delete_accept_rules`] deletes.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn accepted_addresses(&self, family: Family, chain: &str) -> Result<Vec<IpAddr>, Error> {
        let rules = self.dump(&filter(family).list_rules(chain))?;
        let expressions = rules.iter().filter_map(|it| it.value(RULE_EXPRESSIONS));
        let admitted: BTreeSet<_> = expressions.filter_map(admitted).collect();
        let all = admitted.iter().filter(|it| it.1 == Packets::All);
        let both = all.filter(|it| admitted.contains(&(it.0, Packets::Answers)));
        Ok(both.map(|it| it.0).collect())
    }
}

fn filter(family: Family) -> Table {
    Table::of_others(family, "filter")
}

/// The packets that a rule accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Packets {
    /// All packets from an address.
    All,
    /// Packets to an address that satisfy an iptables match `conntrack`.
    Answers,
}

/// Returns the address in a rule that [`Connection::delete_accept_rules`] can delete, and the packets
/// that the rule accepts. Returns `None` for all other rules.
fn admitted(expressions: &[u8]) -> Option<(IpAddr, Packets)> {
    let expressions = parts(expressions).filter(|it| it.0 != "counter");
    let (names, data): (Vec<_>, Vec<_>) = expressions.unzip();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    match (names.as_slice(), data.as_slice()) {
        (["payload", "cmp", "immediate"], [field, cmp, verdict]) => {
            let address = address([field, cmp], Field::Source)?;
            accepts(verdict).then_some((address, Packets::All))
        }
        (["payload", "cmp", "match", "immediate"], [field, cmp, matched, verdict]) => {
            let address = address([field, cmp], Field::Destination)?;
            let is_of_connections = text(value(matched, MATCH_NAME)?) == "conntrack";
            (is_of_connections && accepts(verdict)).then_some((address, Packets::Answers))
        }
        _ => None,
    }
}

/// Returns the address that a condition compares with the packet's source or destination address
/// (`side`). `loaded` is the expression that loads the packet's address, `cmp` the one that
/// compares. Returns `None` for any other condition.
fn address([loaded, cmp]: [&[u8]; 2], side: Side) -> Option<IpAddr> {
    let number_of = |kind| u32::try_from(number(value(loaded, kind))).ok();
    let place = Place::Header(number_of(PAYLOAD_BASE)?, number_of(PAYLOAD_OFFSET)?);
    let address = register::address(compared(cmp)?)?;
    (side(IpVersion::of(address)).place() == place).then_some(address)
}

/// Returns whether the expression `immediate` contains the verdict `accept`.
fn accepts(immediate: &[u8]) -> bool {
    let code = verdict_of(immediate).map(|it| number(value(it, VERDICT_CODE)));
    code == Some(ACCEPT.into())
}
