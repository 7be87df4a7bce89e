//! Collects the kernel's reports of deletions.

use std::mem;

use anyhow::Context as _;
use upkeep::{Heard, Holdings, Losses, Suspicion};

use crate::events::{Events, events};

/// The kernel's reports of deletions.
pub(super) struct Listener {
    reports: Events<Heard>,
    suspicion: Suspicion,
}

impl Listener {
    /// Starts to listen. Records in `holdings` the elements that attachments get from now on.
    pub fn open(holdings: Holdings) -> anyhow::Result<Self> {
        let losses = Losses::open(holdings)?;
        Ok(Self {
            reports: events(move || losses.hear()),
            suspicion: Suspicion::default(),
        })
    }

    /// Waits until the kernel has reported a deletion that may be a loss.
    pub async fn suspicious(&mut self) -> anyhow::Result<()> {
        while !self.is_suspicious() {
            self.hear().await?;
        }
        Ok(())
    }

    /// Returns whether deletions were reported that may be losses.
    pub fn is_suspicious(&self) -> bool {
        !self.suspicion.is_empty()
    }

    /// Returns the deletions that were reported since the last call.
    pub fn take(&mut self) -> Suspicion {
        mem::take(&mut self.suspicion)
    }

    /// Waits for `work`. Collects reports during this time, so that none are lost.
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
        self.suspicion.add(report?);
        Ok(())
    }
}
