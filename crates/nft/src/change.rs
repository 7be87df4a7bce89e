//! A change to the elements of a table, and its result.

use crate::{Element, Table};

/// A change to the elements of a table, carried out in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Elements to delete, before the additions. The kernel refuses the transaction if one of them
    /// does not exist.
    pub delete: Vec<Element>,
    /// Elements to add, after the deletions. The kernel refuses the transaction if the set still
    /// has another element with the same key.
    pub add: Vec<Element>,
    /// How the change computes new counts. A set of counts ([`crate::TargetType::Count`]) stores,
    /// for each of its keys, how many elements of another set have this key.
    pub counts: Counts,
}

impl Change {
    /// Creates a change that deletes and adds these elements. It computes new counts from the
    /// counts that the kernel stores ([`Counts::Followed`]).
    pub fn of(delete: Vec<Element>, add: Vec<Element>) -> Self {
        Self {
            delete,
            add,
            counts: Counts::Followed,
        }
    }
}

/// How a change computes new counts. A set of counts ([`crate::TargetType::Count`]) stores, for
/// each of its keys, how many elements of another set have this key. Each change has to adapt these
/// numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Counts {
    /// Read the counts in the kernel, add the number of added elements, and subtract the number of
    /// deleted ones. If a count is less than the number of deleted elements, it is wrong; then
    /// continue as with [`Self::Listed`].
    #[default]
    Followed,
    /// List and count the elements of the other set, and apply the change to the result. The counts
    /// that the kernel stores are not used, and wrong ones are corrected.
    Listed,
}

/// What [`crate::Connection::update`] changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Updated {
    /// The table was complete, and no element had to change.
    Nothing,
    /// Elements, chains or rules changed.
    Rules,
    /// The whole table was deleted and created again, for one of two reasons: a set had other types
    /// of keys or targets than its description, or a chain lacked the hook that its description
    /// has. Elements of sets with other types are lost. If an element pointed to a chain that the
    /// table's description does not contain, all elements of the same owner are lost, too.
    Table,
}

impl Updated {
    /// Returns a warning for the operator if the table was recreated; otherwise `None`.
    pub fn warning(self, table: &Table) -> Option<String> {
        (self == Self::Table).then(|| {
            format!(
                "nf_tables table {} had another structure and was recreated: elements of other \
                 attachments may be lost; `cnitool reload` restores them",
                table.name
            )
        })
    }
}
