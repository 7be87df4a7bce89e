//! Creates or repairs a table, changes its elements, and compares the table and its elements with
//! what the caller expects.

use std::collections::HashSet;

use nix::errno::Errno;

use crate::exchange::{Committed, End};
use crate::repair::Repairs;
use crate::{Change, Connection, Element, Error, Message, Set, Table, Updated};

impl Connection {
    /// Changes elements of `table`. Creates or repairs the table if necessary.
    ///
    /// `decide` returns the change, and may read the rules through this connection. If another
    /// process changes rules before the commit, this function calls `decide` again. An element that
    /// the change both deletes and adds with the same target and owner stays untouched, unless its set
    /// has ranges and other elements of it change.
    ///
    /// # Errors
    /// In each of these cases, the change was not carried out, but the table may have been repaired
    /// or recreated:
    ///
    /// - `decide` returns an error.
    /// - [`Error::Refused`], [`Error::Unsupported`] and [`Error::Owned`]: the kernel refuses the
    ///   change.
    /// - [`Error::Busy`]: other processes keep changing the rules.
    pub fn update<E: From<Error>>(
        &self,
        table: &Table,
        mut decide: impl FnMut() -> Result<Change, E>,
    ) -> Result<Updated, E> {
        let (mut updated, mut repaired) = (Updated::Nothing, Updated::Nothing);
        let done = until_current(|| {
            let generation = self.generation()?;
            let repairs = match self.repairs(table)? {
                Repairs::InPlace(repairs) => repairs,
                Repairs::Alone(messages, what) => {
                    if self.commit(table, &messages, generation)? == Committed::Yes {
                        repaired = what;
                    }
                    return Ok(Committed::Outdated);
                }
            };
            let change = decide()?;
            let counts = self.count(table, &change)?;
            let Change { delete, add, .. } = &change;
            let (stale, new) = (without(table, delete, add), without(table, add, delete));
            let stale = stale.into_iter().map(|it| table.delete_element(it));
            let new = new.into_iter().map(|it| table.add_element(it));
            let messages: Vec<_> = stale.chain(repairs).chain(new).chain(counts).collect();
            updated = match messages.as_slice() {
                [] => repaired,
                _ => repaired.max(Updated::Rules),
            };
            Ok(self.commit(table, &messages, generation)?)
        });
        done.map(|()| updated)
    }

    /// Deletes `table`, if it exists.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Busy`].
    pub fn delete_table(&self, table: &Table) -> Result<(), Error> {
        until_current(|| {
            let generation = self.generation()?;
            if !self.exists(table)? {
                return Ok(Committed::Yes);
            }
            self.commit(table, &[table.delete()], generation)
        })
    }

    /// Checks by a dry run that the kernel could create or repair `table`; changes nothing.
    ///
    /// # Errors
    /// - [`Error::Refused`], [`Error::Unsupported`] and [`Error::Owned`]: the kernel would refuse
    ///   the creation or repair.
    /// - [`Error::Busy`]: other processes keep changing the rules.
    pub fn dry_run(&self, table: &Table) -> Result<(), Error> {
        until_current(|| {
            let generation = self.generation()?;
            let repairs = self.repairs(table)?;
            let repairs = repairs.into_messages();
            let outcome = self.transact(&repairs, Some(generation), End::RollBack);
            outcome.map_err(|error| self.explained(table, error))
        })
    }

    /// Returns texts for the operator about two kinds of differences: damage of `table`
    /// ([`Self::damage`]), and those of `elements` that are missing or have another target or
    /// owner.
    ///
    /// This function looks each element up by its key, because a list of all elements may be
    /// incomplete while another process changes the set.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn differences(&self, table: &Table, elements: &[Element]) -> Result<Vec<String>, Error> {
        let mut found = self.damage(table)?;
        let missing = self.missing(table, elements)?.into_iter();
        found.extend(missing.map(Element::describe_missing));
        Ok(found)
    }

    /// Returns those of `elements` that the kernel lacks, or has with another target or owner.
    /// Returns no elements if the whole table has to be recreated: [`Self::differences`] reports
    /// the damage of such a table.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn missing<'e>(
        &self,
        table: &Table,
        elements: &'e [Element],
    ) -> Result<Vec<&'e Element>, Error> {
        let missing = self.holders(table, elements).map(|there| {
            let places = elements.iter().zip(there);
            let missing = places.filter(|(wanted, there)| there.as_ref() != Some(*wanted));
            missing.map(|(wanted, _)| wanted).collect::<Vec<_>>()
        });
        // The kernel refuses the look-up of an element if its set in the kernel has another key
        // type than in `table`. That is no error here, because the table has to be recreated.
        if missing.as_ref().is_ok_and(Vec::is_empty) || !self.is_foreign(table)? {
            return missing;
        }
        Ok(Vec::new())
    }

    /// Commits `messages` if the rules still have this `generation`; returns
    /// [`Committed::Outdated`] if another process has changed them. The kernel compares the
    /// generations only if there are messages. This function compares them if there are none: the
    /// caller may have overlooked a necessary change, because another process changed the rules
    /// while the caller read them.
    pub(crate) fn commit(
        &self,
        table: &Table,
        messages: &[Message],
        generation: u32,
    ) -> Result<Committed, Error> {
        if messages.is_empty() && self.generation()? != generation {
            return Ok(Committed::Outdated);
        }
        let committed = self.transact(messages, Some(generation), End::Commit);
        committed.map_err(|error| self.explained(table, error))
    }

    /// Replaces the error EPERM by [`Error::Owned`] if another program owns the table, and returns
    /// all other errors unchanged. The kernel also returns EPERM if this process lacks
    /// `CAP_NET_ADMIN`; such an error is returned unchanged.
    fn explained(&self, table: &Table, error: Error) -> Error {
        let is_refused = error.errno() == Some(Errno::EPERM);
        if is_refused && self.is_owned(table).unwrap_or(false) {
            return Error::Owned { table: table.name };
        }
        error
    }
}

/// Calls `attempt` until it returns [`Committed::Yes`] or an error. `attempt` returns
/// [`Committed::Outdated`] if another process has changed the rules since `attempt` read them.
/// After [`ATTEMPTS`] attempts, this function returns [`Error::Busy`].
pub(crate) fn until_current<E: From<Error>>(
    mut attempt: impl FnMut() -> Result<Committed, E>,
) -> Result<(), E> {
    for _ in 0..ATTEMPTS {
        if attempt()? == Committed::Yes {
            return Ok(());
        }
    }
    Err(Error::Busy.into())
}

/// Returns those elements of `all` that are not in `others`. Returns all elements of a set of ranges in
/// which the two differ: the kernel compares each new end with its neighbours, and refuses some that
/// are right together with the next ones.
fn without<'a>(table: &Table, all: &'a [Element], others: &[Element]) -> Vec<&'a Element> {
    let [mine, theirs] = [all, others].map(|it| it.iter().collect::<HashSet<_>>());
    let differs = |set: &&Set| {
        mine.symmetric_difference(&theirs)
            .any(|it| it.set == set.name)
    };
    let ranges = table.sets.iter().filter(|it| it.has_ranges);
    let replaced: Vec<_> = ranges.filter(differs).map(|it| it.name).collect();
    let is_kept = |it: &&Element| theirs.contains(it) && !replaced.contains(&it.set.as_str());
    all.iter().filter(|it| !is_kept(it)).collect()
}

/// Maximum number of attempts at a transaction. An attempt of one process fails only if a
/// transaction of another process has succeeded. So each process succeeds in the end, but it may
/// need many attempts. Fifty were too few: when sixteen processes called ADD of the plugin portmap
/// two hundred times, one ADD failed in two of seven runs.
const ATTEMPTS: usize = 1000;
