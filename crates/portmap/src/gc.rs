//! GC: ports and records of attachments that nobody lists.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, note};

use crate::record::Records;
use crate::{del, firewall, localnet};

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// Ports that cannot be removed, whose records stay; all records that cannot.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_doomed = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    cni::step("remove the ports");
    let _lock = del::keep_reload_out();
    let records = Records::default();
    for owner in firewall::remove(is_doomed, &records)? {
        note(format_args!("ports of {owner} are listed no more: removed"));
    }
    let owners = records.owners()?.into_iter().filter(|it| is_doomed(it));
    cni::all(owners.map(|owner| {
        localnet::release(&owner, records.read(&owner).as_ref())?;
        records.remove(&owner)
    }))
}
