//! GC: ports and records of attachments that nobody lists.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, note};

use crate::firewall;
use crate::record::Records;

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// The first thing that cannot be removed.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_doomed = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    let removed = firewall::remove(is_doomed)?;
    firewall::forget(&removed.connectionless_ports());
    for owner in &removed.owners {
        note(format_args!("ports of {owner} are listed no more: removed"));
    }
    let records = Records::default();
    for owner in records.owners()?.iter().filter(|owner| is_doomed(owner)) {
        records.remove(owner)?;
    }
    Ok(())
}
