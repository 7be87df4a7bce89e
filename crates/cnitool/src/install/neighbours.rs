//! Reports what may keep a runtime from using the installed files: other executables of the same
//! names, and other configurations.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use cni::files::{self, identity};
use cni::note;
use node::{Configuration, ContainerRuntime, File};

/// Reports other directories that contain executables with the names of this suite's plugins:
/// directories that runtimes search by default, and those that a runtime's configuration names.
pub fn report_executables(directory: &Path) {
    let runtimes = ContainerRuntime::read_all(&Configuration::default());
    let lookups = runtimes.into_iter().filter_map(|it| it.lookup.ok());
    let configured = lookups.flat_map(|it| it.directories);
    let searched = SEARCHED.iter().map(PathBuf::from);
    let places: BTreeSet<_> = searched.chain(configured).collect();
    let own = identity(fs::metadata(directory));
    for place in places {
        let names = schema::plugins().filter(|it| place.join(it).is_file());
        let names: Vec<_> = names.collect();
        if names.is_empty() || identity(fs::metadata(&place)) == own {
            continue;
        }
        note!(
            "{}: has {}, too; a runtime that looks there first executes these: see cnitool doctor",
            place.display(),
            names.join(", ")
        );
    }
}

/// Reports files in `directory` that runtimes use instead of the file `name`, or that configure a
/// network of the same name.
pub fn report_configurations(directory: &Path, name: &OsStr) -> anyhow::Result<()> {
    let mut paths = runtime::candidates(directory)?;
    paths.sort();
    let own = directory.join(name);
    if let Some(first) = paths.first().filter(|it| **it < own) {
        note!(
            "{}: sorts before {}, so containerd and CRI-O use it",
            first.display(),
            name.display()
        );
    }
    if let Some(network) = network_of(&own) {
        let others = paths.iter().filter(|it| **it != own);
        for path in others.filter(|it| network_of(it).as_ref() == Some(&network)) {
            let path = path.display();
            note!("{path}: has the network name {network}, too");
        }
    }
    Ok(())
}

/// Returns the name of the network that a file configures; `None` if the file is invalid.
fn network_of(path: &Path) -> Option<String> {
    let bytes = files::read(path).ok()?;
    let network = File::parse("", &bytes).network.ok()?;
    Some(network.list.name.as_str().to_owned())
}

/// Directories in which runtimes and distributions have plugins.
const SEARCHED: [&str; 5] = [
    "/opt/cni/bin",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/local/libexec/cni",
];
