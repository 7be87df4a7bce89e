//! The metrics of a node at one moment.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use node::Part::{Cache, Configuration, Firewall, Leases, Links};
use node::{Node, Part};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use runtime::Directories;

use crate::calls::Calls;
use crate::family::Metric;
use crate::pods::Pods;
use crate::unread::{LOG, Unread};
use crate::{addresses, attachments, files, lacking, pods, ports, tables};

/// The metrics of a node at one moment. A metric is absent if it needs a part of the node that
/// could not be read, such as the leases.
#[derive(Debug)]
pub struct Snapshot {
    metrics: Vec<Metric>,
    unread: Unread,
    log_files: BTreeSet<PathBuf>,
}

impl Snapshot {
    /// Reads the node in the network namespace of this process. Blocks for some milliseconds, or
    /// longer with thousands of attachments. `pods` selects which pods have metrics of their own.
    pub fn read(directories: &Directories, pods: Pods) -> Self {
        let mut node = Node::counted(directories);
        let unread = Unread::of(std::mem::take(&mut node.unread));
        let is_read = |parts: &[Part]| unread.has_none_of(parts);
        let traces = node.traces();
        let read = [
            is_read(&[Configuration]).then(|| files::count_configurations(&node)),
            is_read(&[Cache]).then(|| files::count_entries(&node)),
            is_read(&[Configuration, Leases]).then(|| addresses::count(&node)),
            is_read(ATTACHMENTS).then(|| attachments::count(&node, &traces)),
            is_read(ELEMENTS).then(|| lacking::count(&node, &traces)),
            is_read(&[Configuration, Firewall]).then(|| ports::count(&node, &traces)),
            is_read(&[Firewall]).then(|| tables::read(&node)),
            is_read(&[Links]).then(|| pods::count(&node, &traces, pods)),
        ];
        Self {
            metrics: read.into_iter().flatten().flatten().collect(),
            log_files: log_files(&node),
            unread,
        }
    }

    /// Returns the log files that the configured networks name, in any order.
    pub fn log_files(&self) -> impl Iterator<Item = &Path> {
        self.log_files.iter().map(PathBuf::as_path)
    }

    /// Records why the plugins' log could not be read.
    pub fn log_is_unread(&mut self, reason: impl fmt::Display) {
        self.unread.add(LOG, reason.to_string());
    }

    /// Returns the metrics of this snapshot and the counts of plugin calls in the text format of
    /// `OpenMetrics`, as [`crate::encode`] does for a registry.
    ///
    /// # Errors
    /// The text cannot be formatted. This is not expected, because all metrics of this crate can be
    /// encoded.
    pub fn into_text(self, calls: &Calls) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        calls.register(&mut registry);
        crate::encode(&registry)
    }

    /// Returns why parts of the node could not be read.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.unread.reasons()
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.unread.metric().encode(&mut encoder)?;
        let mut metrics = self.metrics.iter();
        metrics.try_for_each(|it| it.encode(&mut encoder))
    }
}

/// Returns the paths in the key `logFile` of the configured plugins. Skips relative paths, which
/// plugins ignore, too.
fn log_files(node: &Node) -> BTreeSet<PathBuf> {
    let sources = node.configuration.sources();
    let named = sources.filter_map(|it| it.plugin.key("logFile")?.as_str());
    let files = named.map(PathBuf::from);
    files.filter(|it| it.is_absolute()).collect()
}

/// The parts of the node that show which attachments are live.
const ATTACHMENTS: &[Part] = &[Configuration, Cache, Links];

/// The parts of the node that show which elements a live attachment lacks.
const ELEMENTS: &[Part] = &[Configuration, Cache, Links, Firewall];
