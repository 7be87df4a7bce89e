//! The standby list: attachments that want a port while another attachment of the same container
//! forwards it. The DEL of the other attachment passes the port on.
//!
//! Each attachment on standby has an empty file in a directory for this list. The file has the same
//! name as the attachment's record. The directory is removed when no attachment is on standby. So
//! on most nodes it is missing, and DEL knows at once that no attachment waits for its ports.

use std::collections::BTreeSet;
use std::fs;

use attach::OwnerFiles;
use cni::note;

/// Returns the tags of the attachments on standby, sorted. If the directory cannot be read, the
/// function reports that on standard error and returns no tags: DEL then removes its own elements
/// and passes no port on.
pub(crate) fn owners() -> BTreeSet<String> {
    list().owners().unwrap_or_else(|error| {
        note!("{error:#}");
        BTreeSet::new()
    })
}

/// Adds the attachment with the tag `owner` to the standby list. The caller must first write the
/// record of this attachment, because the DEL that passes a port on to it reads its record.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn join(owner: &str) -> anyhow::Result<()> {
    list().create(owner, "").map(drop)
}

/// Removes the attachment with the tag `owner` from the standby list. If the list is then empty,
/// also removes its directory.
///
/// # Errors
/// The file exists and cannot be removed.
pub(crate) fn leave(owner: &str) -> anyhow::Result<()> {
    let list = list();
    list.remove(owner)?;
    // This call fails, as intended, if the directory still has files of other attachments.
    fs::remove_dir(list.0).ok();
    Ok(())
}

fn list() -> OwnerFiles {
    OwnerFiles("/run/cni/portmap/standby".into())
}
