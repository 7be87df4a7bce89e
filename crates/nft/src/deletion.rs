//! Deletes elements by owner.
//!
//! This module first lists the elements of the table, which takes long in a large table. It then
//! looks up by key those elements that it has to delete, and deletes them, up to [`MOST_AT_ONCE`]
//! in one transaction. The kernel accepts a transaction only if no process has changed the rules
//! since this look-up. If the rules had to stay unchanged since the start of the list, a
//! transaction would hardly ever succeed while other processes change the rules.

use std::collections::{BTreeSet, HashSet};

use crate::attributes::number;
use crate::exchange::Committed;
use crate::raw::CHAIN_USES;
use crate::update::until_current;
use crate::{Change, Connection, Element, Error, Message, Table, base_chain_of};

impl Connection {
    /// Deletes the elements of `table` whose owner satisfies `is_stale`, and returns them. Also
    /// deletes the chains to which these elements pointed, unless other elements or rules point to
    /// these chains. It is no error if another process deletes an element first.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unsupported`], [`Error::Owned`] and [`Error::Busy`]; some
    /// elements may have been deleted before the error.
    pub fn delete(
        &self,
        table: &Table,
        is_stale: impl Fn(&str) -> bool,
    ) -> Result<Vec<Element>, Error> {
        let elements = self.elements_owned(table, is_stale)?;
        self.delete_known(table, &elements)
    }

    /// Returns the elements of `table` whose owner satisfies `is_meant`. Elements that another
    /// process adds or deletes during this call may be missing.
    ///
    /// The kernel's list may lack other elements, too, if another process changes rules meanwhile.
    /// In this case, this function lists the elements again. After ten such lists, it returns
    /// the elements of all lists together, because different lists are unlikely to lack the same
    /// element.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`].
    pub fn elements_owned(
        &self,
        table: &Table,
        is_meant: impl Fn(&str) -> bool,
    ) -> Result<Vec<Element>, Error> {
        let mut seen = HashSet::new();
        for _ in 0..LISTS {
            let (generation, exists) = self.generation_and(Some(table))?;
            if !exists {
                return Ok(Vec::new());
            }
            let mut elements = self.elements(table)?;
            elements.retain(|element| is_meant(&element.owner));
            if self.generation()? == generation {
                return Ok(elements);
            }
            seen.extend(elements);
        }
        Ok(seen.into_iter().collect())
    }

    /// Deletes like [`Self::delete`], but only those of the elements `known` that still have the
    /// same owner. This function does not list the table, so its cost does not depend on the
    /// table's size.
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
        let mut stale = Vec::new();
        until_current(|| {
            let generation = self.generation()?;
            stale = self.still_held(table, known)?;
            let Some(idle) = self.idle_chains(table, known, &stale)? else {
                return Ok(Committed::Outdated);
            };
            let counts = self.count(table, &Change::of(stale.clone(), Vec::new()))?;
            let mut messages: Vec<_> = stale.iter().map(|it| table.delete_element(it)).collect();
            messages.extend(idle.into_iter().chain(counts));
            self.commit(table, &messages, generation)
        })?;
        Ok(stale)
    }

    /// Deletes the chains that `elements` pointed to, after the caller has deleted or replaced
    /// these elements. A chain stays if an element or rule still points to it.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unsupported`], [`Error::Owned`] and [`Error::Busy`].
    pub fn delete_chains_of(&self, table: &Table, elements: &[Element]) -> Result<(), Error> {
        until_current(|| {
            let generation = self.generation()?;
            match self.idle_chains(table, elements, &[])? {
                Some(idle) => self.commit(table, &idle, generation),
                None => Ok(Committed::Outdated),
            }
        })
    }

    /// Returns netlink messages that delete the chains to which `elements` point. `stale` are the
    /// elements that the same transaction deletes. A chain stays if a rule, or an element that is
    /// not in `stale`, points to it. Returns `None` if an element in `stale` points to a chain that
    /// no longer exists: then another process has changed the rules since this process read
    /// `stale`. A chain's [`base_chain_of`] is deleted with it.
    fn idle_chains(
        &self,
        table: &Table,
        elements: &[Element],
        stale: &[Element],
    ) -> Result<Option<Vec<Message>>, Error> {
        let mut messages = Vec::new();
        let chains: BTreeSet<_> = elements.iter().filter_map(Element::chain).collect();
        for chain in chains {
            let own = stale.iter().filter(|it| it.chain() == Some(chain));
            match (self.references(table, chain)?, own.count()) {
                (Some(all), own) if all == own => {
                    messages.push(table.delete_chain(chain));
                    let base_chain = base_chain_of(chain);
                    if self.has_chain(table, &base_chain)? {
                        messages.push(table.delete_chain(&base_chain));
                    }
                }
                (Some(_), _) | (None, 0) => {}
                (None, _) => return Ok(None),
            }
        }
        Ok(Some(messages))
    }

    /// Returns how many elements and rules point to the chain; `None` if the chain does not exist.
    /// The kernel's number of uses also includes the rules in the chain, so this function subtracts
    /// them. The caller deletes the chain only together with everything that points to it, because
    /// the kernel refuses to delete a chain in use. A refused transaction would hold the lock on
    /// all rules for 15 ms (`__nf_tables_abort`).
    fn references(&self, table: &Table, chain: &str) -> Result<Option<usize>, Error> {
        let Some(reply) = self.find(table.get_chain(chain))? else {
            return Ok(None);
        };
        let uses = reply.value(CHAIN_USES).ok_or_else(|| Error::Unreadable {
            reason: format!("chain {chain} without the number of its uses"),
        })?;
        let uses = usize::try_from(number(Some(uses))).unwrap_or(usize::MAX);
        let rules = self.dump(&table.list_rules(chain))?;
        Ok(Some(uses.saturating_sub(rules.len())))
    }
}

/// Maximum number of elements that one transaction deletes. If another process changes the rules
/// before the commit, this process has to start the transaction over. This seldom happens to a
/// short transaction.
const MOST_AT_ONCE: usize = 50;

/// Maximum number of attempts of [`Connection::elements_owned`] to list the elements without a change of
/// rules meanwhile.
const LISTS: usize = 10;
