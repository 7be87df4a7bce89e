//! The attachments of which the daemon keeps leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::Context as _;
use cni::{Attachment, ContainerId, InterfaceName, NetworkName};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::flags::Flags;
use super::task::{Added, Released, Task};
use crate::lease::Lease;
use crate::record::Record;

/// All attachments with a task, by their tags, and what the tasks share.
#[derive(Debug)]
pub(crate) struct HeldLeases {
    pub flags: Arc<Flags>,
    entries: Mutex<HashMap<String, Entry>>,
}

/// The other side of a task.
#[derive(Debug, Clone)]
struct Entry {
    record: Record,
    /// The lease that the interface has.
    lease: watch::Receiver<Option<Lease>>,
    release: mpsc::Sender<Released>,
}

impl HeldLeases {
    pub(crate) fn new(flags: Flags) -> Self {
        Self {
            flags: Arc::new(flags),
            entries: Mutex::default(),
        }
    }

    fn entry(&self, attachment: &Attachment) -> Option<Entry> {
        let entry = self.entries.lock().get(&attachment.owner()).cloned();
        entry.filter(|it| !it.release.is_closed())
    }

    /// Starts the task of an attachment. With `added`, the task first gets a lease.
    pub(crate) fn start(&self, record: Record, added: Option<Added>) {
        let (release, releases) = mpsc::channel(1);
        let (lease, seen) = watch::channel(record.lease.clone());
        let entry = Entry {
            record: record.clone(),
            lease: seen,
            release,
        };
        let task = Task::new(&self.flags, record, lease);
        let mut entries = self.entries.lock();
        entries.retain(|_, it| !it.release.is_closed());
        entries.insert(task.owner.clone(), entry);
        tokio::spawn(task.run(releases, added));
    }

    /// Releases what the record of an attachment without a task names.
    pub(crate) async fn release_record(&self, record: Record) -> anyhow::Result<()> {
        let mut task = Task::new(&self.flags, record, watch::Sender::default());
        task.release().await
    }

    /// Returns the lease that the attachment of `record` has; gets one if it has none.
    pub(crate) async fn add(&self, record: Record) -> anyhow::Result<Lease> {
        let attachment = record.asked.attachment.clone();
        if let Some(mut entry) = self.entry(&attachment) {
            if entry.record.asked.netns == record.asked.netns
                && let Ok(lease) = entry.lease.wait_for(Option::is_some).await
            {
                return lease.clone().context("no lease");
            }
            // The sandbox was replaced without a DEL.
            self.release(&attachment).await?;
        }
        let (added, lease) = oneshot::channel();
        self.start(record, Some(added));
        lease.await.context("the lease was released meanwhile")?
    }

    /// Returns the lease of the attachment of `record`. Without a task, starts one that confirms the
    /// lease in `record`, and waits until a server has confirmed it.
    pub(crate) async fn check(&self, record: Record) -> anyhow::Result<Lease> {
        let attachment = record.asked.attachment.clone();
        if self.entry(&attachment).is_none() {
            let missing = || format!("{attachment} has no lease, and no address to ask for");
            record.lease.as_ref().with_context(missing)?;
            record.write(&self.flags.records())?;
            self.start(record, None);
        }
        let entry = self.entry(&attachment);
        let mut entry = entry.context("the lease was released meanwhile")?;
        let is_confirmed = |it: &Option<Lease>| it.as_ref().is_some_and(Lease::is_confirmed);
        let confirmed = entry.lease.wait_for(is_confirmed);
        let confirmed = timeout(self.flags.timing.timeout, confirmed).await;
        let lease = confirmed.context("no DHCP server confirms the lease")??;
        lease.clone().context("no lease")
    }

    /// Releases the lease of an attachment, if it has one.
    pub(crate) async fn release(&self, attachment: &Attachment) -> anyhow::Result<()> {
        if let Some(entry) = self.entry(attachment) {
            let (released, outcome) = oneshot::channel();
            if entry.release.send(released).await.is_ok()
                && let Ok(outcome) = outcome.await
            {
                return outcome;
            }
        }
        // The record of a task that never started cannot be read.
        let retired = self.flags.records().retire(&attachment.owner());
        retired.remove()
    }

    /// Releases the leases of `network`, except for those of the containers and interfaces in `valid`.
    pub(crate) async fn collect(
        &self,
        network: &NetworkName,
        valid: &HashSet<(ContainerId, InterfaceName)>,
    ) -> anyhow::Result<()> {
        let entries = self.entries.lock().clone().into_values();
        let mut outcomes = Vec::new();
        for attachment in entries.map(|it| it.record.asked.attachment) {
            let names = (attachment.container.clone(), attachment.interface.clone());
            if attachment.network == *network && !valid.contains(&names) {
                outcomes.push(self.release(&attachment).await);
            }
        }
        cni::all(outcomes)
    }
}
