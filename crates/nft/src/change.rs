//! A change to the elements of a table, and its result.

use crate::element::Element;
use crate::table::Table;

/// A change to the elements of a table, carried out in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Elements to delete, before the additions. The kernel refuses the transaction if one of them
    /// does not exist.
    pub delete: Vec<Element>,
    /// Elements to add, after the deletions. The kernel refuses the transaction if the set still
    /// has another element with the same key.
    pub add: Vec<Element>,
    /// How the new numbers in the table's sets of counts are computed.
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

/// How a change computes the new counts in sets with the target [`crate::TargetType::Count`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Counts {
    /// Start with the counts that the kernel stores, and apply the change to them. If a stored
    /// count is too small, count as with [`Self::Listed`].
    #[default]
    Followed,
    /// List all counted elements, count them, and apply the change. The counts that the kernel
    /// stores are ignored and corrected.
    Listed,
}

/// What [`crate::Connection::update`] changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Updated {
    /// The table was complete, and no element had to change.
    Nothing,
    /// Elements, chains or rules changed.
    Rules,
    /// The whole table was deleted and created again, because a set, or a chain without a hook,
    /// differed from its description in a way that cannot be repaired. Elements of sets that
    /// differed are lost. If an element pointed to a chain that the table's description does not
    /// contain, all elements of the same owner are lost, too.
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
