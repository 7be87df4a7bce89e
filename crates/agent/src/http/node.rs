//! The metrics of the node and of the agent's parts, as text.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use metrics::Exporter;
use prometheus_client::registry::Registry;
use runtime::Directories;

/// Reads the state of the node and the plugins' log, and returns all metrics as text.
#[derive(Debug)]
pub(super) struct NodeMetrics {
    directories: Directories,
    pods: Option<usize>,
    log_files: Vec<PathBuf>,
    exporter: Mutex<Exporter>,
}

impl NodeMetrics {
    /// Adds the node's metrics to `registry`, which already has those of the agent's parts.
    pub fn new(
        registry: Registry,
        directories: Directories,
        pods: Option<usize>,
        log_files: Vec<PathBuf>,
    ) -> Self {
        Self {
            directories,
            pods,
            log_files,
            exporter: Exporter::new(registry).into(),
        }
    }

    /// Reads the state of the node, and the lines of the plugins' log that were written since this
    /// function last ran. Returns the text of all metrics. Blocks the calling thread.
    pub fn text(&self) -> anyhow::Result<String> {
        let mut exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner);
        let files = self.log_files.iter().cloned();
        let (text, _) = exporter.text(&self.directories, self.pods, files)?;
        Ok(text)
    }
}
