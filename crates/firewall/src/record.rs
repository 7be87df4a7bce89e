//! Records of attachments: an empty file for each one, in a directory that no reboot survives.
//!
//! RELOAD restores only attachments with a record. DEL and GC remove the record before they look for
//! elements. So either they find what RELOAD restored, or RELOAD finds no record and removes it.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::Context as _;

/// Creates the record of `owner`.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn write(owner: &str) -> anyhow::Result<()> {
    let path = file(owner);
    let made = match File::create(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(DIRECTORY)
            .and_then(|()| File::create(&path)),
        made => made,
    };
    made.with_context(|| format!("create record {}", path.display()))?;
    Ok(())
}

/// Returns whether `owner` has a record.
pub(crate) fn has(owner: &str) -> bool {
    file(owner).exists()
}

/// Removes the record of `owner`. A missing one counts as removed.
///
/// # Errors
/// The file exists and cannot be removed.
pub(crate) fn remove(owner: &str) -> anyhow::Result<()> {
    let path = file(owner);
    match fs::remove_file(&path) {
        // A read-only file system refuses to remove a missing file, too (EROFS).
        Err(error) if fs::exists(&path).unwrap_or(true) => {
            Err(error).with_context(|| format!("remove record {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the owners of all records.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn owners() -> anyhow::Result<Vec<String>> {
    let action = || format!("read directory {DIRECTORY}");
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(action)?,
    };
    let mut owners = Vec::new();
    for entry in entries {
        let name = entry.with_context(action)?.file_name();
        owners.extend(
            name.to_str()
                .map(|it| it.replace(':', "/").replacen('/', ":", 1)),
        );
    }
    Ok(owners)
}

/// Returns the file of `owner`; the parts of an owner contain no colon.
fn file(owner: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(owner.replace('/', ":"))
}

const DIRECTORY: &str = "/run/cni/firewall";
