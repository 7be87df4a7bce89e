//! The metrics of a node at one moment.

use std::collections::BTreeSet;
use std::path::PathBuf;

use node::Part::{Cache, Configuration, Firewall, Leases, Links};
use node::{Node, Part};
use runtime::Directories;

use crate::family::{Family, Metric};
use crate::{addresses, attachments, lacking, pods, ports, tables};

/// The metrics of a node at one moment. A metric is absent if it needs a part of the node that
/// could not be read, such as the leases.
#[derive(Debug)]
pub(crate) struct Snapshot {
    metrics: Vec<Metric>,
    /// The names of the parts that could not be read, with the reasons.
    pub unread: Vec<(String, String)>,
    /// The log files that the configured networks name.
    pub log_files: BTreeSet<PathBuf>,
}

impl Snapshot {
    /// Reads the node, for [`Exporter::text`].
    ///
    /// [`Exporter::text`]: crate::Exporter::text
    pub fn read(directories: &Directories, pods: Option<usize>) -> Self {
        let mut node = Node::counted(directories);
        let unread = std::mem::take(&mut node.unread);
        let is_read = |parts: &[Part]| !unread.iter().any(|it| parts.contains(&it.0));
        let traces = node.traces();
        let read = [
            is_read(&[Configuration]).then(|| vec![invalid_configurations(&node)]),
            is_read(&[Cache]).then(|| vec![INVALID_ENTRIES.value(node.invalid_entries)]),
            is_read(&[Configuration, Leases]).then(|| addresses::count(&node)),
            is_read(ATTACHMENTS).then(|| attachments::count(&node, &traces)),
            is_read(ELEMENTS).then(|| lacking::count(&node, &traces)),
            is_read(&[Configuration, Firewall]).then(|| ports::count(&node, &traces)),
            is_read(&[Firewall]).then(|| tables::read(&node)),
            pods.filter(|_| is_read(&[Links]))
                .map(|most| pods::count(&node, &traces, most)),
        ];
        Self {
            metrics: read.into_iter().flatten().flatten().collect(),
            log_files: log_files(&node),
            unread: unread
                .into_iter()
                .map(|it| (it.0.to_string(), it.1))
                .collect(),
        }
    }

    /// Takes the metrics of this snapshot.
    pub fn metrics(&mut self) -> Vec<Metric> {
        let is_unread = |part: &str| u64::from(self.unread.iter().any(|it| it.0 == part));
        let unread = UNREAD.by(["part"], PARTS.map(|it| ([it], is_unread(it))));
        let others = std::mem::take(&mut self.metrics);
        [unread].into_iter().chain(others).collect()
    }
}

fn invalid_configurations(node: &Node) -> Metric {
    let files = node.configuration.files.iter();
    INVALID_CONFIGURATIONS.value(files.filter(|it| it.network.is_err()).count())
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

/// Name of the plugins' log, which counts as a part of the node.
pub(crate) const LOG: &str = "log";

/// Names of the parts that a snapshot reads.
const PARTS: [&str; 6] = ["cache", "configuration", "firewall", "leases", "links", LOG];

const UNREAD: Family = Family::gauges(
    "cni_unread",
    "1 if the part of the node could not be read. Metrics that need it are absent then.",
);

const INVALID_CONFIGURATIONS: Family = Family::gauges(
    "cni_configuration_files_invalid",
    "Files of network configurations that are invalid. Their networks have no metrics.",
);

const INVALID_ENTRIES: Family = Family::gauges(
    "cni_cache_entries_invalid",
    "Files in the cache of runtimes that are no valid entries.",
);
