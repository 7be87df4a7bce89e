//! DEL and GC: remove egress limits in `nf_tables` (backstops), records, and ifbs of the Go plugin.
//! They do not remove the qdiscs of a veth pair: these disappear when the plugin that created the pair
//! deletes it.

use cni::{DelRequest, GcRequest, note};

use crate::{backstop, ifb, record};

/// Removes the attachment's backstop, its record, and the ifb that the Go plugin made for it. What is
/// missing counts as removed. The record is renamed first: a concurrent RELOAD then finds no record
/// and removes the backstop that it restored.
///
/// # Errors
/// The kernel refuses a request, or the record cannot be removed. An error of one does not stop the
/// removal of the others.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let owner = request.attachment.owner();
    let retired = record::files().retire(&owner);
    cni::step("remove the backstop");
    let removed = backstop::remove(&owner);
    cni::step("find the ifb");
    let deleted = ifb::delete(request);
    // The record stays if the backstop does, so that the next DEL is repeated.
    let forgotten = match removed {
        Ok(()) => retired.remove(),
        failed => failed,
    };
    cni::all([forgotten, deleted])
}

/// Removes the backstops and records of attachments of this network that the runtime does not list.
/// An ifb of the Go plugin stays, because it does not show its network.
///
/// # Errors
/// All errors that occurred. An error does not stop the removal of other objects.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let retired = record::files().retire_stale(request.stale())?;
    cni::step("remove backstops");
    let backstops = attach::remove_stale_elements(request, backstop::tables(), &[]);
    cni::step("remove records");
    let records = retired.into_iter().map(|record| {
        let owner = record.owner.clone();
        record.remove()?;
        note!("removed the record of {owner}, which the runtime does not list");
        Ok(())
    });
    cni::all([backstops, cni::all(records)])
}
