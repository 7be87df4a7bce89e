//! Listens to deletions in the suite's tables of `nf_tables`, and decides which of them need a
//! repair.
//!
//! A DEL deletes elements, too. But a DEL also ends the attachment: it deletes the veth link,
//! or renames the attachment's record file. So a deleted element is missing only if its owner still
//! has the veth link or the record file a moment later. A deletion by a DEL needs no repair, and the
//! decision needs no list of all elements.

use std::collections::BTreeSet;
use std::time::Duration;

use nft::{Deletion, Notification, Table, Watch};

use crate::deletion_check::{DeletionCheck, MissingObjects};
use crate::element_cache::ElementCache;

/// Listens to deletions in the suite's tables, in the network namespace of the thread that called
/// [`Self::open`].
pub struct DeletionMonitor {
    watch: Watch,
    tables: Vec<Table>,
    element_cache: ElementCache,
}

/// Deletions that the kernel reported. [`Self::judge`] finds out whether existing attachments lack
/// what was deleted.
#[derive(Debug, Default)]
pub struct Deletions {
    reported: Vec<Deletion>,
    /// The kernel dropped notifications, or reported more than [`MOST_DELETIONS`] deletions. So
    /// anything may be missing.
    is_incomplete: bool,
}

impl DeletionMonitor {
    /// Starts to listen. [`Self::next_event`] also records in `element_cache` the elements that are
    /// added to the tables from now on.
    ///
    /// # Errors
    /// The kernel has no `nf_tables`, or opens no socket.
    pub fn open(element_cache: ElementCache) -> anyhow::Result<Self> {
        let watch = Watch::open()?;
        Ok(Self {
            watch,
            tables: node::tables(),
            element_cache,
        })
    }

    /// Waits until the kernel reports a deletion or drops notifications, and returns this event.
    /// Records elements that are added meanwhile.
    ///
    /// # Errors
    /// The socket failed.
    pub fn next_event(&self) -> anyhow::Result<Notification> {
        loop {
            match self.watch.receive(&self.tables, Duration::MAX)? {
                None | Some(Notification::Other) => {}
                Some(Notification::Addition {
                    family,
                    table,
                    elements,
                }) => self.element_cache.add((family, table), elements),
                Some(heard) => return Ok(heard),
            }
        }
    }
}

impl Deletions {
    /// Adds a deletion, or remembers that notifications were lost. Ignores all other events.
    pub fn add(&mut self, heard: Notification) {
        match heard {
            Notification::Deletion(it)
                if !self.is_incomplete && self.reported.len() < MOST_DELETIONS =>
            {
                self.reported.push(it);
            }
            Notification::Deletion(_) | Notification::Lost => {
                self.reported = Vec::new();
                self.is_incomplete = true;
            }
            Notification::Addition { .. } | Notification::Other => {}
        }
    }

    /// Returns true if [`Self::add`] has received neither a deletion nor a loss of notifications.
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty() && !self.is_incomplete
    }

    /// Compares the reported deletions with the current state of `nf_tables`, and returns what is
    /// lost; `None` if existing attachments lack nothing. A deleted table or set counts as lost
    /// even if it exists again. Returns [`MissingObjects::of_anything`] if notifications were lost,
    /// or if there were too many deletions to judge. Removes elements of ended attachments from
    /// `element_cache`.
    ///
    /// # Errors
    /// Refusals of the kernel.
    pub fn judge(&self, element_cache: &ElementCache) -> anyhow::Result<Option<MissingObjects>> {
        if self.is_incomplete {
            return Ok(Some(MissingObjects::of_anything()));
        }
        let mut check = DeletionCheck::open()?;
        let mut missing = MissingObjects {
            owners: Some(BTreeSet::new()),
            ..MissingObjects::default()
        };
        for deletion in &self.reported {
            check.judge(deletion, &mut missing)?;
        }
        element_cache.forget(&check.ended);
        Ok(Some(missing).filter(|it| !it.tables.is_empty()))
    }
}

/// Maximum number of deletions that are judged one by one. After more of them, anything counts as
/// lost. A thousand pods with ten elements each have only half as many elements.
const MOST_DELETIONS: usize = 20_000;
