//! DEL: the ports, then the record by which they were known to be in use.

use std::time::Duration;

use cni::{Attachment, DelRequest};
use netns::{Netns, NetnsLock};

use crate::record::Records;
use crate::{firewall, localnet};

/// Removes what the attachment has. What is not there is removed.
///
/// # Errors
/// Whatever the kernel refuses; the record stays then.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    remove(&request.attachment)
}

pub(crate) fn remove(attachment: &Attachment) -> anyhow::Result<()> {
    let (owner, records) = (attachment.owner(), Records::default());
    cni::step("remove the ports");
    let _lock = keep_reload_out();
    let record = records.read(&owner);
    firewall::remove_of(&owner, (record.as_ref(), &records))?;
    localnet::release(&owner, record.as_ref())?;
    records.remove(&owner)
}

/// Until the record is gone, by which RELOAD knows whose ports to forward. Without a lock no more
/// can happen than that ports are left to GC.
pub(crate) fn keep_reload_out() -> Option<NetnsLock> {
    Netns::own()
        .and_then(|host| host.lock_shared(RELOAD_OF_ONE))
        .ok()
}

/// Far longer than a RELOAD keeps its lock, which anybody on the host can keep for ever.
const RELOAD_OF_ONE: Duration = Duration::from_secs(2);
