//! The standby list: attachments that want a port, while another attachment of the same container
//! has it.
//!
//! Each attachment on standby has an empty file in a directory for this list. The file has the same
//! name as the attachment's record. The directory exists only while an attachment is on standby. So
//! on most nodes, DEL sees by a missing directory that no attachment takes over its ports.

use std::collections::BTreeSet;
use std::fs;

use attach::OwnerFiles;
use cni::note;

/// Returns the owners on standby, sorted. If the directory cannot be read, the function logs the
/// error and returns no owners: DEL then removes its own elements and passes no port on.
pub(crate) fn owners() -> BTreeSet<String> {
    list().owners().unwrap_or_else(|error| {
        note(format_args!("{error:#}"));
        BTreeSet::new()
    })
}

/// Adds `owner` to the list. The caller must first write the record of `owner`: an attachment that
/// passes a port on to `owner` reads this record.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn join(owner: &str) -> anyhow::Result<()> {
    list().create(owner, "").map(drop)
}

/// Removes `owner` from the list. Also removes the directory if no owner is left.
///
/// # Errors
/// The file exists and cannot be removed.
pub(crate) fn leave(owner: &str) -> anyhow::Result<()> {
    let list = list();
    list.remove(owner)?;
    // Fails if the directory still has files of other owners.
    fs::remove_dir(list.0).ok();
    Ok(())
}

fn list() -> OwnerFiles {
    OwnerFiles("/run/cni/portmap/standby".into())
}
