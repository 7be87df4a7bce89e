//! One round: reads the node, asks the runtimes, and removes what is proven stale.

use std::collections::BTreeSet;

use anyhow::Context as _;
use runtime::{Chain, Conflist, Directories};
use tokio::task::spawn_blocking;
use upkeep::{Removal, read_node, remove};

use super::config::{Config, RuntimeSocket};
use super::counters::Counters;
use super::sandboxes::Runtimes;
use super::verdict::{Seen, Verdict};

/// What a round reports.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Errors of DELs.
    pub failures: Vec<String>,
    /// What the operator should know; the same lines in each round until something changes.
    pub notes: BTreeSet<String>,
}

/// Reads the node, then asks the runtimes.
///
/// # Errors
/// The node cannot be read, or a runtime does not answer. Then the round must remove nothing.
pub(super) async fn look(
    sockets: &RuntimeSocket,
    directories: &Directories,
) -> anyhow::Result<Seen> {
    let runtimes = Runtimes::connect(sockets).await.context(NOTHING)?;
    let directories = directories.clone();
    let node = spawn_blocking(move || read_node(&directories));
    let node = node.await.context("read the node")??;
    let listed = runtimes.sandboxes().await.context(NOTHING)?;
    Ok(Seen { node, listed })
}

const NOTHING: &str = "nothing was removed";

impl Report {
    /// Returns why stale attachments remain; `None` if none does.
    pub fn failure(&self) -> Option<String> {
        // The text of a failing part is one line, whatever plugins print.
        let first = self.failures.first()?.replace('\n', "; ");
        let count = self.failures.len();
        Some(format!("{count} of the stale attachments remain: {first}"))
    }
}

/// What a round needs in addition to the state that it read.
#[derive(Debug, Clone)]
pub(super) struct Collector {
    /// The configuration.
    pub config: Config,
    /// The directories of the container runtime.
    pub directories: Directories,
    /// Counters of removals.
    pub counters: Counters,
}

impl Collector {
    /// Removes every stale attachment, and continues after a failure. With `dryRun`, only reports
    /// them.
    pub fn collect(&self, seen: &Seen) -> Report {
        let mut report = Report {
            notes: seen.left_out().into_iter().collect(),
            ..Report::default()
        };
        let mut unproven = Vec::new();
        for network in seen.networks() {
            let verdicts = seen.verdicts(network);
            let reasons: Vec<_> = verdicts.iter().filter_map(Verdict::unproven).collect();
            unproven.push((&network.name, reasons.len()));
            let name = &network.name;
            report.notes.extend(reasons.into_iter().map(|reason| {
                format!("network {name}: attachments that no runtime lists stay: {reason}")
            }));
            let stale = verdicts.iter().filter(|it| it.kept.is_none());
            stale.for_each(|it| self.remove(network, it, &mut report));
        }
        self.counters.set_unproven(unproven.into_iter());
        self.counters.round_ended(report.failures.is_empty());
        report
    }

    fn remove(&self, network: &Conflist, stale: &Verdict<'_>, report: &mut Report) {
        if self.config.dry_run {
            let attachment = &stale.remains.attachment;
            report.notes.insert(format!("dryRun: no DEL {attachment}"));
            return;
        }
        match remove(&Chain::new(network, &self.directories), &stale.remains) {
            Ok(Removal::Removed) => self.counters.removed(&network.name),
            Ok(Removal::Kept) => {}
            Err(error) => {
                self.counters.failed(&network.name);
                report.failures.push(format!("{error:#}"));
            }
        }
    }
}
