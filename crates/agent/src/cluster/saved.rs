//! Files that the part `cluster` writes.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use cluster::{Nodes, State};
use cni::files::if_present;
use cni::note;
use tempfile::NamedTempFile;

/// Returns the nodes that an earlier agent of the node `own` wrote to `path`; none, with a note, if the
/// file is not one of an agent. That of another node comes from a copy of its disk.
pub(super) fn read(path: &Path, own: &str) -> Nodes {
    let read = State::read(path).unwrap_or_else(|error| {
        note(format_args!(
            "cluster: {}: {error}; waiting for the API server",
            path.display()
        ));
        None
    });
    let state = read.filter(|it| it.node == own);
    state.unwrap_or_default().nodes
}

/// Writes `state` to `path`.
///
/// # Errors
/// The file or its directory cannot be written.
pub(super) fn write(path: &Path, state: &State) -> anyhow::Result<()> {
    replace(path, &serde_json::to_vec(state)?, 0o644)
}

/// Replaces the file `path` in one step, so that a reader finds the old or the new content. The file
/// has this `mode`, and never a wider one. Creates the directory.
///
/// # Errors
/// The file or its directory cannot be written.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let write = || {
        let directory = path.parent().context("is no file")?;
        fs::create_dir_all(directory)?;
        let mut file = NamedTempFile::with_prefix_in(UNFINISHED, directory)?;
        file.write_all(content)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_data()?;
        file.persist(path)?;
        anyhow::Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}

/// Removes files beside `path` that an agent did not finish because it was killed. They may have keys.
///
/// # Errors
/// The directory cannot be read, or a file cannot be removed.
pub(super) fn remove_unfinished(path: &Path) -> anyhow::Result<()> {
    let directory = path.parent().context("is no file")?;
    let remove = || {
        for entry in if_present(fs::read_dir(directory))?.into_iter().flatten() {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                fs::remove_file(path)?;
            }
        }
        anyhow::Ok(())
    };
    remove().with_context(|| format!("remove unfinished files in {}", directory.display()))
}

/// The beginning of the names of unfinished files.
const UNFINISHED: &str = ".cni-agent-";
