//! The directories of a container runtime, and the plugins in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cni::files::{Links, identity, read_regular};

use crate::{Configuration, Program};

/// Where a container runtime looks for plugins.
#[derive(Debug, Default)]
pub struct Lookup {
    /// The directories. The runtime executes a plugin from the first one that contains it.
    pub directories: Vec<PathBuf>,
    /// The file that sets the directories; if none does, the main configuration file.
    pub file: PathBuf,
    /// The key that sets the directories, with its section.
    pub key: &'static str,
    /// Plugins of this suite that a network names, and that the runtime does not execute from
    /// `CNI_PATH`: the executable that it finds instead, or `None` if it finds none.
    pub others: BTreeMap<String, Option<PathBuf>>,
}

impl Lookup {
    /// Returns the lookup with [`Self::others`].
    pub fn compared(mut self, configuration: &Configuration) -> Self {
        for (name, program) in &configuration.programs {
            let Program::Found {
                path,
                is_ours: true,
                ..
            } = program
            else {
                continue;
            };
            let found = self.find(name);
            if !found.as_ref().is_some_and(|it| are_equal(it, path)) {
                self.others.insert(name.clone(), found);
            }
        }
        self
    }

    /// Returns the first file of this name in the directories. As libcni does (`FindInPath`), it
    /// does not ask whether the file is executable.
    fn find(&self, name: &str) -> Option<PathBuf> {
        let mut files = self.directories.iter().map(|it| it.join(name));
        files.find(|it| it.is_file())
    }
}

/// Returns whether two paths lead to the same file or to equal ones.
fn are_equal(one: &Path, other: &Path) -> bool {
    let [metadata, of_other] = [one, other].map(fs::metadata);
    let length = |it: &std::io::Result<fs::Metadata>| it.as_ref().map(fs::Metadata::len).ok();
    if length(&metadata) != length(&of_other) {
        return false;
    }
    let read = |path| read_regular(path, Links::Follow, LARGEST).ok();
    identity(metadata) == identity(of_other) || read(one).is_some_and(|it| Some(it) == read(other))
}

/// Where containerd and CRI-O look if no file sets the directories.
pub const DEFAULT: &str = "/opt/cni/bin";

/// Size limit of an executable in bytes.
const LARGEST: u64 = 1 << 30;
