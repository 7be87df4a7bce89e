//! DEL and GC: remove ports and their records (files in `/run/cni/portmap`), DEL those of one
//! attachment, GC those of attachments that the runtime does not list.

use std::collections::BTreeSet;

use attach::Retired;
use cni::{Attachment, DelRequest, GcRequest, note};

use crate::record::{self, Record};
use crate::{firewall, localnet};

/// Removes the ports of the attachment, then its record. Succeeds also if they do not exist.
///
/// # Errors
/// The kernel refuses a request, or a file cannot be removed. The record then stays.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    remove(&request.attachment)
}

/// Removes the ports of `attachment`, then its record.
pub(crate) fn remove(attachment: &Attachment) -> anyhow::Result<()> {
    let owner = attachment.owner();
    cni::step("remove the ports");
    let retired = record::files().retire(&owner);
    let record = retired.text().and_then(Record::parse);
    let listed = record.as_ref().map(|it| it.elements.clone());
    let displaced = record.as_ref().map_or(&[][..], |it| &it.displaced);
    let removed = firewall::remove(|it| it == owner, listed, displaced)?;
    localnet::release(&owner, record.as_ref())?;
    if record.is_none() {
        localnet::reset_forgotten(&removed)?;
    }
    retired.remove()
}

/// Removes the ports and records of attachments of this network that the runtime does not list.
///
/// # Errors
/// - The records cannot be listed, or a port cannot be removed. All records then stay.
/// - A record cannot be removed, or `route_localnet` cannot be reset. The error contains all such
///   failures.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    cni::step("remove the ports");
    let stale = record::files().retire_stale(&is_stale)?;
    let record = |it: &Retired| it.text().and_then(Record::parse);
    let records = stale.iter().filter_map(record);
    let displaced: Vec<_> = records.flat_map(|it| it.displaced).collect();
    let mut removed = firewall::remove(&is_stale, None, &displaced)?;
    let owners: BTreeSet<_> = removed.iter().map(|it| it.owner.as_str()).collect();
    for owner in owners {
        note!("removed ports of {owner}, which the runtime does not list");
    }
    removed.retain(|it| stale.iter().all(|retired| retired.owner != it.owner));
    localnet::reset_forgotten(&removed)?;
    cni::all(stale.into_iter().map(|retired| {
        localnet::release(&retired.owner, record(&retired).as_ref())?;
        retired.remove()
    }))
}
