//! Records which elements the attachments have in the suite's `nf_tables` tables.
//!
//! RELOAD, a verb of this suite, restores lost elements. Afterwards, these records show which
//! attachments still lack elements. Neither the kernel nor RELOAD shows that: the kernel does not
//! report the elements of a deleted table, and RELOAD skips attachments whose results are in no
//! cache.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use nft::Element;
use parking_lot::Mutex;

use crate::deletion_check::{DeletionCheck, Name};

/// Elements that were seen in the suite's tables, each with its owner. All clones share one
/// collection.
#[derive(Debug, Clone, Default)]
pub struct ElementCache(Arc<Mutex<BTreeMap<Name, Owners>>>);

/// The elements of a table: for each place (set and key), the tag of the element's owner.
type Owners = HashMap<Place, String>;

type Place = (String, Vec<u8>);

/// For each attachment's tag, the tables in which the attachment lacks elements.
pub type MissingElements = BTreeMap<String, BTreeSet<&'static str>>;

impl ElementCache {
    /// Records elements of a table. Skips elements without an owner, which several attachments
    /// share, and elements with which attachments stand by for an address.
    pub(crate) fn add(&self, table: Name, elements: Vec<Element>) {
        let mut tables = self.0.lock();
        let held = tables.entry(table).or_default();
        let is_own = |it: &Element| !it.owner.is_empty() && !attach::stands_by(table.1, it);
        for element in elements.into_iter().filter(is_own) {
            held.insert(place(&element), element.owner);
        }
    }

    /// Removes the records of `ended`: deleted elements that no existing attachment needs. Keeps a
    /// record that names another owner than the element in `ended`, because another attachment has
    /// added an element with this key since the deletion.
    pub(crate) fn forget(&self, ended: &[(Name, Element)]) {
        for (table, element) in ended {
            self.forget_place(*table, &place(element), &element.owner);
        }
    }

    /// Returns which attachments with a link on the host lack elements that they had, and in which
    /// tables. Reads all elements of the tables, and updates the records.
    ///
    /// RELOAD has just restored the attachments in `reloaded`. They may need fewer elements now
    /// than before. So such an attachment counts as lacking elements of a table only if it has no
    /// element there at all.
    ///
    /// # Errors
    /// Refusals of the kernel.
    pub fn lacking(&self, reloaded: &BTreeSet<String>) -> anyhow::Result<MissingElements> {
        let mut check = DeletionCheck::open()?;
        let mut lacking = MissingElements::new();
        for table in node::tables() {
            let name = (table.family, table.name);
            // The records are copied before the kernel's list is read. So an element that is added
            // and recorded in between does not count as missing.
            let held = self.0.lock().get(&name).cloned().unwrap_or_default();
            let elements = check.connection.elements(&table)?;
            let absent = absent(held, &elements);
            let owners: BTreeSet<_> = elements.iter().map(|it| it.owner.as_str()).collect();
            for (place, owner) in absent {
                let is_restored = reloaded.contains(&owner) && owners.contains(owner.as_str());
                if is_restored || !check.is_attached(table.name, &owner)? {
                    self.forget_place(name, &place, &owner);
                } else {
                    lacking.entry(owner).or_default().insert(table.name);
                }
            }
            self.add(name, elements);
        }
        Ok(lacking)
    }

    /// Removes the record of the element at `place` (set and key) if it names `owner`. Keeps a
    /// record that names another owner: that attachment added the element after the caller had
    /// found it deleted or missing.
    fn forget_place(&self, table: Name, place: &Place, owner: &str) {
        let mut tables = self.0.lock();
        let held = tables.entry(table).or_default();
        if held.get(place).is_some_and(|it| it == owner) {
            held.remove(place);
        }
    }
}

/// Returns the elements of `held`, the records of a table, that are not among `elements`.
fn absent(mut held: Owners, elements: &[Element]) -> Owners {
    for element in elements {
        held.remove(&place(element));
    }
    held
}

fn place(element: &Element) -> Place {
    let (set, key) = element.place();
    (set.to_owned(), key.to_vec())
}
