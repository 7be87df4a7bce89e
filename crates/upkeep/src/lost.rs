//! Losses in the suite's tables of `nf_tables`.

use std::collections::BTreeSet;

use nft::Family;

/// What the suite's tables lack, and which attachments need RELOAD. RELOAD, a verb of this suite,
/// restores lost rules and elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loss {
    /// Names of the tables that are known to lack something.
    pub tables: BTreeSet<&'static str>,
    /// The tags of the attachments that lost elements; `None` if any attachment may have lost some.
    pub owners: Option<BTreeSet<String>>,
}

impl Loss {
    /// Returns a loss of unknown extent: each table may lack any elements.
    pub fn of_anything() -> Self {
        Self::default()
    }

    /// Returns a loss that names these attachments and no tables. The caller uses it to repeat
    /// RELOAD for attachments that an earlier RELOAD did not restore.
    pub fn of(owners: BTreeSet<String>) -> Self {
        Self {
            owners: Some(owners),
            ..Self::default()
        }
    }

    /// Adds the tables and the owners of `other`. `owners` becomes `None` if it is `None` in either
    /// loss, because any attachment may then have lost elements.
    pub fn and(mut self, other: Option<Self>) -> Self {
        if let Some(other) = other {
            self.tables.extend(other.tables);
            let owners = self.owners.zip(other.owners);
            self.owners = owners.map(|(mut all, more)| {
                all.extend(more);
                all
            });
        }
        self
    }

    /// Returns whether something in the tables is lost, or may be lost. Returns `false` for a loss
    /// from [`Self::of`]: nothing new is lost, and the caller only repeats a RELOAD that failed.
    pub fn is_of_tables(&self) -> bool {
        !self.tables.is_empty() || self.owners.is_none()
    }

    /// Returns whether only elements of known attachments are missing. Such a loss may need no
    /// repair, so the caller judges the deletions again a little later. The reason: a
    /// failed ADD deletes the elements before the link. While the link exists, the deletion looks like
    /// a loss.
    pub fn may_be_transient(&self) -> bool {
        self.owners.is_some()
    }

    /// Returns whether the attachment with the tag `owner` may need RELOAD: its elements in the
    /// suite's tables may be lost, or an earlier RELOAD did not restore them.
    pub fn concerns(&self, owner: &str) -> bool {
        self.owners.as_ref().is_none_or(|it| it.contains(owner))
    }
}

/// Family and name of a table.
pub(crate) type Name = (Family, &'static str);
