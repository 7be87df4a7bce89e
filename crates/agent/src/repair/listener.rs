//! Collects the kernel's reports of deletions in the suite's `nf_tables` tables.

use std::mem;

use anyhow::Context as _;
use upkeep::{Deletions, ElementCache, Losses, Notification};

use crate::events::{Events, events};

/// Receives the kernel's reports of deletions, and keeps them until [`Self::take`].
pub(super) struct Listener {
    reports: Events<Notification>,
    deletions: Deletions,
}

impl Listener {
    /// Starts to listen. Records in `element_cache` the elements that attachments get from now on.
    pub fn open(element_cache: ElementCache) -> anyhow::Result<Self> {
        let losses = Losses::open(element_cache)?;
        Ok(Self {
            reports: events(move || losses.hear()),
            deletions: Deletions::default(),
        })
    }

    /// Waits until [`Self::is_suspicious`] returns true. Fails if the socket fails.
    pub async fn suspicious(&mut self) -> anyhow::Result<()> {
        while !self.is_suspicious() {
            self.hear().await?;
        }
        Ok(())
    }

    /// Returns whether the kernel has reported a deletion, or has dropped reports, since the last
    /// [`Self::take`].
    pub fn is_suspicious(&self) -> bool {
        !self.deletions.is_empty()
    }

    /// Returns the deletions in `nf_tables` that the kernel reported since the last call, and
    /// whether the kernel dropped reports.
    pub fn take(&mut self) -> Deletions {
        mem::take(&mut self.deletions)
    }

    /// Waits for `work` and returns its value. Receives reports meanwhile, because the kernel drops
    /// reports if too many wait. Fails if the socket fails.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> anyhow::Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                heard = self.hear() => heard?,
            }
        }
    }

    async fn hear(&mut self) -> anyhow::Result<()> {
        let report = self.reports.recv().await;
        let report = report.context("the thread that listens has ended")?;
        self.deletions.add(report?);
        Ok(())
    }
}
