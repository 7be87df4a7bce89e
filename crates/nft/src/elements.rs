//! Reads the elements of a table.

use std::collections::{BTreeSet, HashSet};

use crate::attributes::attributes;
use crate::raw::{ELEMENTS, RawMessage};
use crate::{Connection, Element, Error, Set, Table};

impl Connection {
    /// Returns the kernel's element with the set and key of `wanted`, whatever its owner and
    /// target. Returns `None` if the set has no element with this key.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn holder(&self, table: &Table, wanted: &Element) -> Result<Option<Element>, Error> {
        let found = self.holders(table, [wanted])?;
        Ok(found.into_iter().next().flatten())
    }

    /// Returns what [`Self::holder`] returns for each element of `wanted`, in the same order.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn holders<'e>(
        &self,
        table: &Table,
        wanted: impl IntoIterator<Item = &'e Element, IntoIter: Clone>,
    ) -> Result<Vec<Option<Element>>, Error> {
        let wanted = wanted.into_iter();
        let questions = wanted.clone().map(|it| table.get_element(it));
        let found = self.find_each(questions)?.into_iter();
        let elements = wanted.zip(found).map(|(wanted, reply)| {
            let elements = read_elements(&wanted.set, &reply?);
            elements.into_iter().next()
        });
        Ok(elements.collect())
    }

    /// Looks up the elements `known` in the kernel by set and key. Returns those that still have
    /// the same owner, with their current targets. Returns each element once, even if `known` has
    /// duplicates.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn still_held<'e>(
        &self,
        table: &Table,
        known: impl IntoIterator<Item = &'e Element, IntoIter: Clone>,
    ) -> Result<Vec<Element>, Error> {
        let known = known.into_iter();
        let holders = self.holders(table, known.clone())?;
        let mut seen = BTreeSet::new();
        let held = known.zip(holders).filter_map(|(known, holder)| {
            holder.filter(|it| it.owner == known.owner && seen.insert(known.place()))
        });
        Ok(held.collect())
    }

    /// Returns the elements of `set`; empty if the table or set does not exist. Elements may be
    /// missing if another process changes rules meanwhile. Ranges are in ascending order: the kernel
    /// lets the end of a range be deleted only after its start.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements_of(&self, table: &Table, set: &Set) -> Result<Vec<Element>, Error> {
        match self.dump(&table.list_elements(set)) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            replies => {
                let replies = replies?;
                let elements = replies.iter().flat_map(|it| read_elements(set.name, it));
                // The kernel lists some elements twice if it resizes the set's hash table
                // meanwhile, so this function removes duplicates.
                let mut seen = HashSet::new();
                let elements = elements.filter(|it| seen.insert(it.clone()));
                let mut elements: Vec<_> = elements.collect();
                if set.has_ranges {
                    elements.sort_by(|one, other| one.place().cmp(&other.place()));
                }
                Ok(elements)
            }
        }
    }

    /// Returns the elements of `table` in the order of its sets, without the sets that hold no element of
    /// an attachment: those of counts ([`crate::TargetType::Count`]) and of ranges. Returns no elements
    /// if the table does not exist. Elements may be missing if another process changes rules meanwhile.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements(&self, table: &Table) -> Result<Vec<Element>, Error> {
        let mut elements = Vec::new();
        let of_attachments = |it: &&Set| !it.is_of_counts() && !it.has_ranges;
        for set in table.sets.iter().filter(of_attachments) {
            elements.extend(self.elements_of(table, set)?);
        }
        Ok(elements)
    }
}

/// Returns the elements in a reply of the kernel. The caller guarantees that they belong to the set
/// called `set`.
pub(crate) fn read_elements(set: &str, reply: &RawMessage) -> Vec<Element> {
    let elements = attributes(reply.value(ELEMENTS).unwrap_or_default());
    elements
        .filter_map(|it| Element::read(set, it.value))
        .collect()
}
