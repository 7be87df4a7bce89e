//! Files that are not valid.

use std::fmt;

use node::Node;

use crate::family::{Family, Writer, number};

/// Numbers of invalid files.
#[derive(Debug)]
pub(crate) struct InvalidFiles {
    configurations: Option<u64>,
    entries: Option<u64>,
}

impl InvalidFiles {
    /// Counts the files; `None` for a directory that could not be read.
    pub fn of(node: &Node, [configuration, cache]: [bool; 2]) -> Self {
        let files = node.configuration.files.iter();
        let invalid = files.filter(|it| it.network.is_err()).count();
        Self {
            configurations: configuration.then(|| number(invalid)),
            entries: cache.then(|| number(node.invalid_entries)),
        }
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        for (family, number) in [
            (&CONFIGURATIONS, self.configurations),
            (&ENTRIES, self.entries),
        ] {
            number.map_or(Ok(()), |it| writer.gauge(family, it))?;
        }
        Ok(())
    }
}

const CONFIGURATIONS: Family = Family {
    name: "cni_configuration_files_invalid",
    unit: None,
    help: "Files of network configurations that are invalid. Their networks have no metrics.",
};

const ENTRIES: Family = Family {
    name: "cni_cache_entries_invalid",
    unit: None,
    help: "Files in the cache of runtimes that are no valid entries.",
};
