//! A change to the elements of a table, and what came of it.

use crate::element::Element;
use crate::table::Table;

/// A change to the elements of a table, carried out in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Elements deleted first; they must exist.
    pub delete: Vec<Element>,
    /// Elements added afterwards; their keys must be free.
    pub add: Vec<Element>,
    /// How the counts of the table follow.
    pub counts: Counts,
}

/// How the sets of [`crate::TargetType::Count`] follow a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Counts {
    /// From the numbers that the kernel has.
    #[default]
    Followed,
    /// From a list of all elements that they count.
    Listed,
}

/// What [`crate::Connection::update`] changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Updated {
    /// The table was complete and needed no change.
    Nothing,
    /// Elements, chains or rules changed.
    Rules,
    /// The whole table was recreated: a set or chain existed that could not be repaired. Foreign
    /// elements of that set, and elements that point to foreign chains, are lost.
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
