//! The attachments of which the daemon keeps leases.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::flags::Flags;
use super::task::Task;
use crate::lease::Lease;
use crate::record::Record;
use crate::wire::{Answer, Asked};

/// All attachments with a task, by their tags, and what the tasks share.
#[derive(Debug)]
pub(crate) struct HeldLeases {
    pub flags: Arc<Flags>,
    entries: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    netns: PathBuf,
    lease: watch::Receiver<Answer>,
    task: JoinHandle<()>,
}

impl HeldLeases {
    pub(crate) fn new(flags: Flags) -> Self {
        Self {
            flags: Arc::new(flags),
            entries: Mutex::default(),
        }
    }

    /// Starts the task of an attachment. Returns its state for clients.
    pub(crate) fn start(&self, record: Record) -> watch::Receiver<Answer> {
        let netns = record.asked.netns.clone();
        let (task, lease) = Task::new(&self.flags, record);
        let owner = task.owner.clone();
        let entry = Entry {
            netns,
            lease: lease.clone(),
            task: tokio::spawn(task.run()),
        };
        let mut entries = self.entries.lock();
        entries.retain(|_, it| !it.task.is_finished());
        entries.insert(owner, entry);
        lease
    }

    /// Returns the namespace of the attachment `owner`, and the state of its task for clients.
    fn find(&self, owner: &str) -> Option<(PathBuf, watch::Receiver<Answer>)> {
        let entries = self.entries.lock();
        let entry = entries.get(owner).filter(|it| !it.task.is_finished())?;
        Some((entry.netns.clone(), entry.lease.clone()))
    }

    /// Returns the lease that the attachment has; gets one if it has none.
    pub(crate) async fn add(&self, asked: Asked) -> anyhow::Result<Option<Lease>> {
        let owner = asked.attachment.owner();
        let mut lease = match self.find(&owner) {
            Some((netns, lease)) if netns == asked.netns => lease,
            _ => {
                // If there is one, the sandbox was replaced without a DEL.
                self.release(&owner).await?;
                self.start(Record::new(asked))
            }
        };
        let answer = lease.wait_for(|it| *it != Ok(None)).await;
        let answer = answer.context("the lease was released meanwhile")?.clone();
        answer.map_err(anyhow::Error::msg)
    }

    /// Returns the lease of the attachment. Without a task, starts one that confirms `known`, and
    /// waits until a server has confirmed it.
    pub(crate) async fn check(
        &self,
        asked: Asked,
        known: Option<Lease>,
    ) -> anyhow::Result<Option<Lease>> {
        let attachment = &asked.attachment;
        let missing = || format!("{attachment} has no lease, and no address to ask for");
        let mut lease = if let Some((_, lease)) = self.find(&attachment.owner()) {
            lease
        } else {
            let known = known.with_context(missing)?;
            let record = Record::foreign(asked, known);
            record.write(&self.flags.records())?;
            self.start(record)
        };
        let is_confirmed = |it: &Answer| matches!(it, Ok(Some(it)) if it.is_confirmed());
        let confirmed = timeout(self.flags.timing.timeout, lease.wait_for(is_confirmed)).await;
        let confirmed = confirmed.context("no DHCP server confirms the lease")??;
        confirmed.clone().map_err(anyhow::Error::msg)
    }

    /// Ends the task of an attachment, and releases what its record names.
    pub(crate) async fn release(&self, owner: &str) -> anyhow::Result<()> {
        let entry = self.entries.lock().remove(owner);
        if let Some(entry) = entry {
            entry.task.abort();
            entry.task.await.ok();
        }
        let retired = self.flags.records().retire(owner);
        match retired.text().map(serde_json::from_str::<Record>) {
            Some(Ok(record)) => Task::new(&self.flags, record).0.release().await,
            _ => retired.remove(),
        }
    }
}
