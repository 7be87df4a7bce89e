//! The metrics of the node and of the agent's parts, as text.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use metrics::{Calls, Follower, Latest, Pods, Snapshot};
use prometheus_client::registry::Registry;
use runtime::Directories;

/// Reads the state of the node and the plugins' log, and returns all metrics as text.
#[derive(Debug)]
pub(super) struct NodeMetrics {
    registry: Registry,
    directories: Directories,
    pods: Pods,
    log_files: Vec<PathBuf>,
    latest: Latest,
    calls: Calls,
    follower: Mutex<Follower>,
}

impl NodeMetrics {
    /// Adds the node's metrics to `registry`, which already has those of the agent's parts.
    pub fn new(
        mut registry: Registry,
        directories: Directories,
        pods: Pods,
        log_files: Vec<PathBuf>,
    ) -> Self {
        let (latest, calls) = (Latest::default(), Calls::default());
        registry.register_collector(Box::new(latest.clone()));
        calls.register(&mut registry);
        Self {
            registry,
            directories,
            pods,
            log_files,
            latest,
            calls,
            follower: Mutex::default(),
        }
    }

    /// Reads the state of the node, and returns the text of all metrics. Blocks the calling thread.
    pub fn text(&self) -> anyhow::Result<String> {
        self.read();
        metrics::encode(&self.registry).context("encode the metrics")
    }

    /// Reads the node's state into a new snapshot. Counts the plugin calls in the log lines that
    /// were written since this function last ran. `registry` contains the snapshot and the counts.
    /// If a log file cannot be read, the snapshot contains the reason.
    fn read(&self) {
        let mut snapshot = Snapshot::read(&self.directories, self.pods);
        let named = snapshot.log_files().map(ToOwned::to_owned);
        let mut files: Vec<_> = self.log_files.iter().cloned().chain(named).collect();
        files.sort();
        files.dedup();
        let mut follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner);
        for file in files {
            if let Err(error) = self.calls.follow(&mut follower, &file) {
                snapshot.log_is_unread(format_args!("{error:#}"));
            }
        }
        self.latest.set(snapshot);
    }
}
