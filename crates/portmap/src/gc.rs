//! GC: removes ports and records of attachments that the runtime does not list.

use cni::{GcRequest, note};

use crate::record::Records;
use crate::{firewall, localnet};

/// Removes the ports and records of attachments of this network that the runtime does not list.
///
/// # Errors
/// Refusals of the kernel; the records then stay. All errors of records that cannot be removed.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    cni::step("remove the ports");
    let records = Records::default();
    let owners = records.owners()?.into_iter();
    let owners: Vec<_> = owners.filter(|it| is_stale(it)).collect();
    for owner in &owners {
        records.retire(owner);
    }
    for owner in firewall::remove(&is_stale, None, &records)? {
        note(format_args!(
            "removed ports of {owner}, which the runtime does not list"
        ));
    }
    cni::all(owners.iter().map(|owner| {
        localnet::release(owner, records.read(owner).as_ref())?;
        records.remove(owner)
    }))
}
