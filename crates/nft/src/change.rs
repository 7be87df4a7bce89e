//! A change to the elements of a table, and its result.

use crate::element::Element;
use crate::table::Table;

/// A change to the elements of a table, carried out in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Elements to delete first. The caller guarantees that they exist; otherwise the kernel
    /// refuses the transaction.
    pub delete: Vec<Element>,
    /// Elements to add after the deletions. The caller guarantees that no other element has one of
    /// their keys; otherwise the kernel refuses the transaction.
    pub add: Vec<Element>,
    /// How the new numbers in the table's sets of counts are computed.
    pub counts: Counts,
}

impl Change {
    /// Creates a change that deletes and adds these elements. The new counts are computed from the
    /// numbers that the kernel has.
    pub fn of(delete: Vec<Element>, add: Vec<Element>) -> Self {
        Self {
            delete,
            add,
            counts: Counts::Followed,
        }
    }
}

/// How a change computes the new numbers in sets of [`crate::TargetType::Count`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Counts {
    /// From the numbers that the kernel has, and the change.
    #[default]
    Followed,
    /// From a list of all counted elements, and the change.
    Listed,
}

/// What [`crate::Connection::update`] changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Updated {
    /// The table was complete, and no element had to change.
    Nothing,
    /// Elements, chains or rules changed.
    Rules,
    /// The whole table was deleted and created again, because a set or chain of another type cannot
    /// be repaired. All elements of such a set are lost. If an element pointed to a chain that the
    /// description of the table does not contain, all elements of its owner are lost.
    Table,
}

impl Updated {
    /// Returns a warning for the log if the table was recreated.
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
