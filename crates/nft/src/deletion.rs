//! Taking out what belongs to somebody.
//!
//! What is doomed is listed first, which takes long where there is much, and then asked for by key and
//! deleted, a little at a time: others change the rules meanwhile, and would never let a deletion
//! through that has to read everything in between.

use std::collections::HashSet;

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{ChainAttribute, NfTablesMessage};

use crate::connection::{Connection, until_current};
use crate::element::Element;
use crate::error::Error;
use crate::message::Message;
use crate::reply::Reply;
use crate::socket::Committed;
use crate::table::Table;

impl Connection {
    /// Deletes the elements of `table` whose owner is doomed, and the chains to which no others
    /// lead; says which elements they were. What is not there is deleted.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Busy`]; a part of them may be deleted then.
    pub fn delete(
        &self,
        table: &Table,
        is_doomed: impl Fn(&str) -> bool,
    ) -> Result<Vec<Element>, Error> {
        let elements = self.elements_owned(table, is_doomed)?;
        self.delete_known(table, &elements)
    }

    /// Every element of `table` whose owner `is_meant`, as far as it is there all the time.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements_owned(
        &self,
        table: &Table,
        is_meant: impl Fn(&str) -> bool,
    ) -> Result<Vec<Element>, Error> {
        let mut elements = self.listed(table)?;
        elements.retain(|element| is_meant(&element.owner));
        Ok(elements)
    }

    /// As [`Self::delete`], for elements that are known: those of them that still are whose
    /// they were. It costs the same at any number of others.
    ///
    /// # Errors
    /// As [`Self::delete`].
    pub fn delete_known(&self, table: &Table, known: &[Element]) -> Result<Vec<Element>, Error> {
        let mut deleted = Vec::new();
        for known in known.chunks(MOST_AT_ONCE) {
            deleted.append(&mut self.delete_few(table, known)?);
        }
        Ok(deleted)
    }

    fn delete_few(&self, table: &Table, known: &[Element]) -> Result<Vec<Element>, Error> {
        let mut doomed = Vec::new();
        until_current(|| {
            let generation = self.generation()?;
            doomed.clear();
            for element in known {
                let there = self.holder(table, element)?;
                let is_doomed = |it: &Element| it.owner == element.owner && !doomed.contains(it);
                let there = there.filter(is_doomed);
                doomed.extend(there);
            }
            let Some(idle) = self.idle_chains(table, known, &doomed)? else {
                return Ok(Committed::Outdated);
            };
            let mut messages: Vec<_> = doomed.iter().map(|it| table.delete_element(it)).collect();
            messages.extend(idle);
            self.commit(table, messages, generation)
        })?;
        Ok(doomed)
    }

    /// Deletes the chains to which `elements` led, unless any element leads there still.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Busy`].
    pub fn delete_chains_of(&self, table: &Table, elements: &[Element]) -> Result<(), Error> {
        until_current(|| {
            let generation = self.generation()?;
            match self.idle_chains(table, elements, &[])? {
                Some(idle) => self.commit(table, idle, generation),
                None => Ok(Committed::Outdated),
            }
        })
    }

    /// What deletes the chains to which `elements` lead, and none but those that are `doomed`;
    /// `None` where somebody deletes them meanwhile.
    fn idle_chains(
        &self,
        table: &Table,
        elements: &[Element],
        doomed: &[Element],
    ) -> Result<Option<Vec<Message>>, Error> {
        let mut messages = Vec::new();
        for chain in chains_of(elements) {
            let own = doomed.iter().filter(|it| it.chain() == Some(chain));
            match (self.references(table, chain), own.count()) {
                (Ok(all), own) if all == own => messages.push(table.delete_chain(chain)),
                (Ok(_), _) => {}
                (Err(error), 0) if error.is_not_found() => {}
                (Err(error), _) if error.is_not_found() => return Ok(None),
                (Err(error), _) => return Err(error),
            }
        }
        Ok(Some(messages))
    }

    /// How many elements lead to the chain. The kernel would refuse to delete one to which any does,
    /// but a transaction that is refused keeps everybody waiting for 15 ms (`__nf_tables_abort`).
    fn references(&self, table: &Table, chain: &str) -> Result<usize, Error> {
        let rules = self.rules_of(table, chain)?.len();
        let replies = self.socket.get(table.get_chain(chain))?;
        let uses = replies.iter().find_map(|reply| match reply {
            Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(it))) => {
                it.attributes.iter().find_map(|attribute| match attribute {
                    ChainAttribute::Use(uses) => usize::try_from(*uses).ok(),
                    _ => None,
                })
            }
            _ => None,
        });
        let uses = uses.ok_or_else(|| Error::Unreadable {
            reason: format!("chain {chain} without the number of its uses"),
        })?;
        Ok(uses.saturating_sub(rules))
    }

    /// Every element of `table` that is there all the time. A list that is told while others change
    /// the rules may lack some, but hardly each time the same.
    fn listed(&self, table: &Table) -> Result<Vec<Element>, Error> {
        let mut seen = HashSet::new();
        for _ in 0..LISTS {
            let generation = self.generation()?;
            let elements = self.elements(table)?;
            if self.generation()? == generation {
                return Ok(elements);
            }
            seen.extend(elements);
        }
        Ok(seen.into_iter().collect())
    }
}

/// The chains to which elements lead, each once.
fn chains_of(elements: &[Element]) -> Vec<&str> {
    let mut chains: Vec<_> = elements.iter().filter_map(Element::chain).collect();
    chains.sort_unstable();
    chains.dedup();
    chains
}

/// So that others' changes, after which all is asked for again, seldom come in between.
const MOST_AT_ONCE: usize = 50;

/// Lists of which one was told while nobody changed anything, or all of which together lack nothing.
const LISTS: usize = 10;
