//! Files that the part `cluster` writes.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use cluster::State;
use cni::note;
use tempfile::NamedTempFile;

/// Returns what an earlier agent wrote to `path`; nothing, with a note, if the file is not one of an
/// agent.
pub(super) fn read(path: &Path) -> State {
    let read = State::read(path).unwrap_or_else(|error| {
        note(format_args!(
            "cluster: {}: {error}; waiting for the API server",
            path.display()
        ));
        None
    });
    read.unwrap_or_default()
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
        let mut file = NamedTempFile::with_prefix_in(".cni-agent-", directory)?;
        file.write_all(content)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_data()?;
        file.persist(path)?;
        anyhow::Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}
