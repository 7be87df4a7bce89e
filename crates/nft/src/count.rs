//! Keeps counts of elements. A set of counts ([`TargetType::Count`]) maps the last bytes of keys,
//! such as a protocol and port, to the number of elements of another set whose keys end in these
//! bytes. So a caller reads a count from one element instead of listing all counted elements.
//!
//! One transaction changes the counted elements and their counts. The kernel refuses the
//! transaction if another process has changed the rules since this process read the counts. So the
//! counts are right unless another program adds or deletes counted elements. This module lists and
//! counts the elements again in two cases: a count is less than the number of elements to delete,
//! or chains of the table have to be repaired.

use std::collections::{BTreeMap, BTreeSet};

use crate::table::type_len;
use crate::{Change, Connection, Counts, Element, Error, Message, Set, Table, TargetType};

/// A set of counts and the set whose elements it counts.
struct Counting<'a> {
    table: &'a Table,
    counts: &'a Set,
    counted: &'a Set,
    /// The number that identifies the set `counts` within a transaction that creates it.
    id: u32,
}

/// Maps a key of the set of counts to the number of elements of the counted set whose keys end in
/// this key.
type Numbers = BTreeMap<Vec<u8>, u32>;

impl Connection {
    /// Returns netlink messages that adapt the counts of `table` to `change`. The caller appends
    /// them to the transaction that carries out `change`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub(crate) fn count(&self, table: &Table, change: &Change) -> Result<Vec<Message>, Error> {
        let mut messages = Vec::new();
        for counting in Counting::all(table) {
            let deleted = counting.numbers(&change.delete);
            let added = counting.numbers(&change.add);
            let followed = match change.counts {
                Counts::Followed => self.followed(&counting, [&deleted, &added])?,
                Counts::Listed => None,
            };
            let (there, before) = match followed {
                Some(there) => (there.clone(), there),
                None => self.listed_numbers(&counting)?,
            };
            let after = |key| {
                let number = |of: &Numbers| of.get(key).copied().unwrap_or_default();
                let there_then = number(&before).saturating_add(number(&added));
                there_then.saturating_sub(number(&deleted))
            };
            let keys = there.keys().chain(before.keys());
            let keys: BTreeSet<_> = keys.chain(deleted.keys()).chain(added.keys()).collect();
            let wanted = keys.into_iter().map(|key| (key.clone(), after(key)));
            messages.extend(counting.replace(&there, &wanted.collect()));
        }
        Ok(messages)
    }

    /// Returns the counts in the kernel for the keys of `deleted` and `added`. Returns `None` if
    /// these counts are wrong, because one of them is less than the number in `deleted`.
    fn followed(
        &self,
        counting: &Counting<'_>,
        [deleted, added]: [&Numbers; 2],
    ) -> Result<Option<Numbers>, Error> {
        let keys = || deleted.keys().chain(added.keys());
        let wanted = keys().map(|key| Element::count(counting.counts.name, key, 0));
        let found = self.holders(counting.table, &wanted.collect::<Vec<_>>())?;
        let mut there = Numbers::new();
        for (key, found) in keys().zip(found) {
            let number = found.and_then(|it| it.number());
            if number.unwrap_or_default() < deleted.get(key).copied().unwrap_or_default() {
                return Ok(None);
            }
            there.extend(number.map(|it| (key.clone(), it)));
        }
        Ok(Some(there))
    }

    /// Returns two maps: the counts in the kernel, and the right counts. To get the right counts,
    /// this function lists the counted elements.
    fn listed_numbers(&self, counting: &Counting<'_>) -> Result<(Numbers, Numbers), Error> {
        let counts = self.elements_of(counting.table, counting.counts)?;
        let numbers = counts.iter().map(|it| {
            let (_, key) = it.place();
            (key.to_vec(), it.number().unwrap_or_default())
        });
        let counted = self.elements_of(counting.table, counting.counted)?;
        Ok((numbers.collect(), counting.numbers(&counted)))
    }
}

/// Returns netlink messages that store the counts of `elements` in the table's sets of counts. The
/// caller guarantees that these sets are empty.
pub(crate) fn first(table: &Table, elements: &[Element]) -> Vec<Message> {
    let countings = Counting::all(table);
    let messages = countings.flat_map(|it| it.replace(&Numbers::new(), &it.numbers(elements)));
    messages.collect()
}

impl<'a> Counting<'a> {
    fn all(table: &'a Table) -> impl Iterator<Item = Self> {
        table.sets.iter().zip(1..).filter_map(move |(counts, id)| {
            let TargetType::Count(name) = counts.target else {
                return None;
            };
            let counted = table.sets.iter().find(|it| it.name == name)?;
            Some(Self {
                table,
                counts,
                counted,
                id,
            })
        })
    }

    /// Counts those of `elements` that belong to the set `counted`, by the ends of their keys.
    fn numbers(&self, elements: &[Element]) -> Numbers {
        let len = type_len(&self.counts.key);
        let mut numbers = Numbers::new();
        for element in elements {
            let (set, key) = element.place();
            let end = key.len().checked_sub(len).and_then(|it| key.get(it..));
            if let Some(end) = end.filter(|_| set == self.counted.name) {
                *numbers.entry(end.to_vec()).or_default() += 1;
            }
        }
        numbers
    }

    /// Returns netlink messages that change the counts in the kernel from `there` to `wanted`. The
    /// messages also create the set of counts if it is missing. Another program may have deleted
    /// the set, because no rule refers to it.
    fn replace(&self, there: &Numbers, wanted: &Numbers) -> Vec<Message> {
        let element =
            |(key, number): (&Vec<u8>, &u32)| Element::count(self.counts.name, key, *number);
        let is_wrong = |(key, number): &(&Vec<u8>, &u32)| there.get(*key) != Some(*number);
        let wrong = || wanted.iter().filter(is_wrong);
        let stale = wrong().filter_map(|(key, _)| there.get_key_value(key));
        let mut messages: Vec<_> = stale
            .map(|it| self.table.delete_element(&element(it)))
            .collect();
        let new: Vec<_> = wrong()
            .filter(|(_, number)| **number > 0)
            .map(element)
            .collect();
        if !new.is_empty() {
            messages.push(self.table.create_set(self.counts, self.id));
        }
        messages.extend(new.iter().map(|it| self.table.add_element(it)));
        messages
    }
}
