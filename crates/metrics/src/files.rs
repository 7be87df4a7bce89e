//! Counts invalid files: network configurations, and entries in the cache of runtimes.

use node::Node;

use crate::family::{Family, Metric};

/// Counts the invalid files of network configurations.
pub(crate) fn count_configurations(node: &Node) -> Vec<Metric> {
    let files = node.configuration.files.iter();
    let invalid = files.filter(|it| it.network.is_err()).count();
    vec![CONFIGURATIONS.value(invalid)]
}

/// Counts the invalid files in the cache in which runtimes keep the results of ADD.
pub(crate) fn count_entries(node: &Node) -> Vec<Metric> {
    vec![ENTRIES.value(node.invalid_entries)]
}

const CONFIGURATIONS: Family = Family::gauges(
    "cni_configuration_files_invalid",
    "Files of network configurations that are invalid. Their networks have no metrics.",
);

const ENTRIES: Family = Family::gauges(
    "cni_cache_entries_invalid",
    "Files in the cache of runtimes that are no valid entries.",
);
