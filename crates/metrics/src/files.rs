//! Files that are not valid.

use std::fmt;

use node::{Node, Part};

use crate::family::{Family, Writer, number};
use crate::unread::Unread;

/// Numbers of invalid files.
#[derive(Debug)]
pub(crate) struct InvalidFiles {
    configurations: Option<u64>,
    entries: Option<u64>,
}

impl InvalidFiles {
    /// Counts the invalid files. Leaves out directories that could not be read.
    pub fn of(node: &Node, unread: &Unread) -> Self {
        let files = node.configuration.files.iter();
        let invalid = files.filter(|it| it.network.is_err()).count();
        let counted = |part, files| unread.has_none_of(&[part]).then(|| number(files));
        Self {
            configurations: counted(Part::Configuration, invalid),
            entries: counted(Part::Cache, node.invalid_entries),
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
