//! Collects the kernel's reports of deletions in the suite's `nf_tables` tables.

use std::sync::Arc;
use std::thread;

use tokio::sync::watch;
use upkeep::{DeletionMonitor, Deletions, ElementCache};

/// The deletions that the kernel has reported since the last [`Self::take`], or the error of the
/// socket. A thread receives the reports, so the kernel drops none while the event loop is busy.
pub(super) struct Listener(Arc<watch::Sender<anyhow::Result<Deletions>>>);

impl Listener {
    /// Starts to listen. Records in `element_cache` the elements that attachments get from now on.
    /// The thread ends if the socket fails, or with the first report after `self` was dropped.
    pub fn open(element_cache: ElementCache) -> anyhow::Result<Self> {
        let monitor = DeletionMonitor::open(element_cache)?;
        let reports = Arc::new(watch::Sender::new(Ok(Deletions::default())));
        let weak = Arc::downgrade(&reports);
        thread::spawn(move || {
            loop {
                let heard = monitor.next_event();
                let Some(reports) = weak.upgrade() else {
                    return;
                };
                match heard {
                    Ok(report) => reports.send_modify(|it| {
                        if let Ok(deletions) = it {
                            deletions.add(report);
                        }
                    }),
                    Err(error) => {
                        drop(reports.send_replace(Err(error)));
                        return;
                    }
                }
            }
        });
        Ok(Self(reports))
    }

    /// Waits until [`Self::is_suspicious`] returns true.
    pub async fn suspicious(&self) {
        let mut reports = self.0.subscribe();
        // `self` has the sender, so waiting cannot fail.
        reports.wait_for(is_suspicious).await.ok();
    }

    /// Returns whether the kernel has reported a deletion or has dropped reports since the last
    /// [`Self::take`], or whether the socket has failed.
    pub fn is_suspicious(&self) -> bool {
        is_suspicious(&self.0.borrow())
    }

    /// Returns the deletions in `nf_tables` that the kernel reported since the last call, and
    /// whether the kernel dropped reports. Fails if the socket has failed.
    pub fn take(&self) -> anyhow::Result<Deletions> {
        self.0.send_replace(Ok(Deletions::default()))
    }
}

fn is_suspicious(reports: &anyhow::Result<Deletions>) -> bool {
    !reports.as_ref().is_ok_and(Deletions::is_empty)
}
