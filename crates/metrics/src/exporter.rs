//! Reads a node and the plugins' log again and again, and writes their metrics as text.

use std::path::PathBuf;

use anyhow::Context as _;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use runtime::Directories;

use crate::calls::Calls;
use crate::family::Latest;
use crate::follower::Follower;
use crate::snapshot::{LOG, Snapshot};

/// The metrics of a node, and those that a registry already has.
#[derive(Debug)]
pub struct Exporter {
    registry: Registry,
    node: Latest,
    calls: Calls,
    follower: Follower,
}

impl Exporter {
    /// Adds the metrics of a node to `registry`.
    pub fn new(mut registry: Registry) -> Self {
        Self {
            node: Latest::new(&mut registry),
            calls: Calls::new(&mut registry),
            follower: Follower::default(),
            registry,
        }
    }

    /// Reads the node in the network namespace of this process, and the lines that were added to
    /// the plugins' log since the last call: in `log_files`, and in the log files that the
    /// configured networks name. Returns all metrics in the text format of `OpenMetrics`, which
    /// ends with `# EOF`, and why parts of the node could not be read. At most `pods` pods have
    /// metrics of their own; without it none, and no metric has the number of pods.
    ///
    /// Blocks for some milliseconds, or longer with thousands of attachments.
    ///
    /// # Errors
    /// A collector in the registry cannot encode its metrics. The collectors of this crate always
    /// can.
    pub fn text(
        &mut self,
        directories: &Directories,
        pods: Option<usize>,
        log_files: impl IntoIterator<Item = PathBuf>,
    ) -> anyhow::Result<(String, Vec<String>)> {
        let mut snapshot = Snapshot::read(directories, pods);
        snapshot.log_files.extend(log_files);
        for file in &snapshot.log_files {
            if let Err(error) = self.calls.follow(&mut self.follower, file) {
                snapshot.unread.push((LOG.to_owned(), format!("{error:#}")));
            }
        }
        self.node.set(snapshot.metrics());
        let mut text = String::new();
        encode(&mut text, &self.registry).context("encode the metrics")?;
        let reasons = snapshot.unread.into_iter().map(|(_, reason)| reason);
        Ok((text, reasons.collect()))
    }
}

impl Default for Exporter {
    fn default() -> Self {
        Self::new(Registry::default())
    }
}
