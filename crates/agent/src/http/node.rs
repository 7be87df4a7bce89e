//! Reads the metrics of the node each time when the text of all metrics is made.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use metrics::{Calls, Follower, Latest, Options, Snapshot};
use prometheus_client::registry::Registry;
use runtime::Directories;

/// Reads the node and the plugins' log.
#[derive(Debug)]
pub(super) struct NodeMetrics {
    directories: Directories,
    options: Options,
    log_files: Vec<PathBuf>,
    latest: Latest,
    calls: Calls,
    follower: Mutex<Follower>,
}

impl NodeMetrics {
    /// Adds the metrics to `registry`. The registry's text then has the values that the last
    /// [`Self::read`] found.
    pub fn register(
        registry: &mut Registry,
        directories: Directories,
        options: Options,
        log_files: Vec<PathBuf>,
    ) -> Self {
        let (latest, calls) = (Latest::default(), Calls::default());
        registry.register_collector(Box::new(latest.clone()));
        calls.register(registry);
        Self {
            directories,
            options,
            log_files,
            latest,
            calls,
            follower: Mutex::default(),
        }
    }

    /// Reads the node, and the lines that plugins have added to the log since the last call. Blocks
    /// the calling thread.
    pub fn read(&self) {
        let mut snapshot = Snapshot::read(&self.directories, &self.options);
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
