//! Listens to deletions in the suite's tables of `nf_tables`, and decides which of them are losses.
//!
//! A DEL deletes elements, too. But a DEL also ends the attachment: it deletes the veth link or the
//! ifb device, or renames the attachment's record file. So a deleted element is a loss only if its
//! owner still has the veth link, the ifb device or the record file a moment later. A deletion by a
//! DEL needs no repair, and the decision needs no list of all elements.

use std::collections::BTreeSet;
use std::time::Duration;

use nft::{Deletion, Heard, Table, Watch};

use crate::holdings::Holdings;
use crate::judge::Judge;
use crate::lost::Loss;

/// Listens to deletions in the suite's tables, in the network namespace of the thread that called
/// [`Self::open`].
pub struct Losses {
    watch: Watch,
    tables: Vec<Table>,
    holdings: Holdings,
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

impl Losses {
    /// Starts to listen. [`Self::hear`] also records in `holdings` the elements that are added to
    /// the tables from now on.
    ///
    /// # Errors
    /// The kernel has no `nf_tables`, or opens no socket.
    pub fn open(holdings: Holdings) -> anyhow::Result<Self> {
        let watch = Watch::open()?;
        watch.make_room()?;
        Ok(Self {
            watch,
            tables: node::tables(),
            holdings,
        })
    }

    /// Waits until the kernel reports a deletion or drops notifications, and returns this event.
    /// Records elements that are added meanwhile.
    ///
    /// # Errors
    /// The socket failed.
    pub fn hear(&self) -> anyhow::Result<Heard> {
        loop {
            match self.watch.hear(&self.tables, Duration::MAX)? {
                None | Some(Heard::Other) => {}
                Some(Heard::Addition {
                    family,
                    table,
                    elements,
                }) => self.holdings.add((family, table), elements),
                Some(heard) => return Ok(heard),
            }
        }
    }
}

impl Deletions {
    /// Adds a deletion, or remembers that notifications were lost. Ignores all other events.
    pub fn add(&mut self, heard: Heard) {
        match heard {
            Heard::Deletion(it) if !self.is_incomplete && self.reported.len() < MOST_DELETIONS => {
                self.reported.push(it);
            }
            Heard::Deletion(_) | Heard::Lost => {
                self.reported = Vec::new();
                self.is_incomplete = true;
            }
            Heard::Addition { .. } | Heard::Other => {}
        }
    }

    /// Returns true if [`Self::add`] has received neither a deletion nor a loss of notifications.
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty() && !self.is_incomplete
    }

    /// Compares the reported deletions with the current state of `nf_tables`, and returns what is
    /// lost; `None` if existing attachments lack nothing. A deleted table or set counts as lost
    /// even if it exists again. Returns [`Loss::of_anything`] if notifications were lost, or if
    /// there were too many deletions to judge. Removes elements of ended attachments from
    /// `holdings`.
    ///
    /// # Errors
    /// Refusals of the kernel.
    pub fn judge(&self, holdings: &Holdings) -> anyhow::Result<Option<Loss>> {
        if self.is_incomplete {
            return Ok(Some(Loss::of_anything()));
        }
        let mut judge = Judge::open()?;
        let mut loss = Loss {
            owners: Some(BTreeSet::new()),
            ..Loss::default()
        };
        for deletion in &self.reported {
            judge.judge(deletion, &mut loss)?;
        }
        holdings.forget(&judge.ended);
        Ok(Some(loss).filter(|it| !it.tables.is_empty()))
    }
}

/// Maximum number of deletions that are judged one by one. After more of them, anything counts as
/// lost. A thousand pods with ten elements each have only half as many elements.
const MOST_DELETIONS: usize = 20_000;
