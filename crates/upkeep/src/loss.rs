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
use crate::lost::{Loss, tables};

/// Listens to deletions in the suite's tables, in the network namespace of the thread that opened
/// it.
pub struct Losses {
    watch: Watch,
    tables: Vec<Table>,
    holdings: Holdings,
}

/// Reported deletions that may be losses.
#[derive(Debug, Default)]
pub struct Suspicion {
    deletions: Vec<Deletion>,
    /// Notifications were lost, so anything may be missing.
    is_incomplete: bool,
}

impl Losses {
    /// Starts to listen. Elements that are added later are recorded in `holdings`.
    ///
    /// # Errors
    /// The kernel has no `nf_tables`, or opens no socket.
    pub fn open(holdings: Holdings) -> anyhow::Result<Self> {
        let watch = Watch::open()?;
        watch.make_room()?;
        Ok(Self {
            watch,
            tables: tables(),
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

impl Suspicion {
    /// Adds a notification.
    pub fn add(&mut self, heard: Heard) {
        match heard {
            Heard::Deletion(it) if !self.is_incomplete && self.deletions.len() < MOST_DELETIONS => {
                self.deletions.push(it);
            }
            Heard::Deletion(_) | Heard::Lost => {
                self.deletions = Vec::new();
                self.is_incomplete = true;
            }
            Heard::Addition { .. } | Heard::Other => {}
        }
    }

    /// Returns whether no deletion was reported and no notification was lost.
    pub fn is_empty(&self) -> bool {
        self.deletions.is_empty() && !self.is_incomplete
    }

    /// Compares the reported deletions with the current state of `nf_tables`, and returns what is
    /// lost. A deleted table or set counts as lost even if it exists again. If notifications were
    /// lost, anything counts as lost. Returns `None` if existing attachments lack nothing. Removes
    /// elements of ended attachments from `holdings`.
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
        for deletion in &self.deletions {
            judge.judge(deletion, &mut loss)?;
        }
        holdings.forget(&judge.ended);
        Ok(Some(loss).filter(|it| !it.tables.is_empty()))
    }
}

/// Maximum number of deletions that are judged one by one. After more of them, anything counts as
/// lost. The elements of a thousand pods with ten elements each are fewer.
const MOST_DELETIONS: usize = 20_000;
