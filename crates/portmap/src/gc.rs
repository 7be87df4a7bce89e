//! GC: ports and records of attachments that nobody lists.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, note};

use crate::record::Records;
use crate::{firewall, localnet};

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// Ports that cannot be removed, whose records stay; all records that cannot.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_doomed = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    cni::step("remove the ports");
    let records = Records::default();
    let owners = records.owners()?.into_iter();
    let owners: Vec<_> = owners.filter(|it| is_doomed(it)).collect();
    for owner in &owners {
        records.retire(owner);
    }
    for owner in firewall::remove(is_doomed, &records)? {
        note(format_args!("ports of {owner} are listed no more: removed"));
    }
    cni::all(owners.iter().map(|owner| {
        localnet::release(owner, records.read(owner).as_ref())?;
        records.remove(owner)
    }))
}
