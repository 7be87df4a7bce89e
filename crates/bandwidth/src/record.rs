//! Records of the bandwidth that the kubelet allocated to a pod: one file for each attachment whose
//! ADD used such an allocation.
//!
//! Later verbs cannot read the allocation from the kubelet's checkpoint. The kubelet removes a
//! deleted pod from the checkpoint. After a forced deletion, the kubelet gives the pod's devices to
//! another pod while the first pod still exists.

use anyhow::Context as _;
use attach::{OwnerFiles, Writing};
use cni::{Attachment, GcRequest, note};

use crate::allocation::Allocation;

/// Returns whether the attachment with the tag `owner` ([`Attachment::owner`]) has a record: its ADD
/// limited it to the bandwidth of its devices.
pub fn exists(owner: &str) -> bool {
    files().has(owner)
}

/// Writes the record of the attachment with the tag `owner` ([`Attachment::owner`]). Replaces an
/// existing record.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(owner: &str, allocation: &Allocation) -> anyhow::Result<()> {
    files().write(owner, &allocation.to_string(), Writing::All)
}

/// Returns the allocation that the ADD of an attachment used. If there is no record, returns an
/// empty allocation.
///
/// # Errors
/// The record cannot be read.
pub(crate) fn read(attachment: &Attachment) -> anyhow::Result<Allocation> {
    let (files, owner) = (files(), attachment.owner());
    if !files.has(&owner) {
        return Ok(Allocation::default());
    }
    let allocation = files.find(&owner)?.parse();
    allocation.with_context(|| format!("parse the record of {owner} in {DIRECTORY}"))
}

/// Removes the record of the attachment with the tag `owner` ([`Attachment::owner`]), if there is
/// one.
///
/// # Errors
/// The file exists and cannot be removed.
pub(crate) fn remove(owner: &str) -> anyhow::Result<()> {
    files().retire(owner).remove()
}

/// Removes the records of those attachments of this network that the runtime does not list.
///
/// # Errors
/// All errors that occurred.
pub(crate) fn collect(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    let owners = files().owners()?.into_iter().filter(|it| is_stale(it));
    cni::all(owners.map(|owner| {
        remove(&owner)?;
        note(format_args!(
            "removed the record of {owner}, which the runtime does not list"
        ));
        Ok(())
    }))
}

fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

const DIRECTORY: &str = "/run/cni/bandwidth";
