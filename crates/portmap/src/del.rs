//! DEL: the ports, then the record by which they were known to be in use.

use cni::{Attachment, DelRequest};

use crate::firewall;
use crate::record::Records;

/// Removes what the attachment has. What is not there is removed.
///
/// # Errors
/// Whatever the kernel refuses; the record stays then.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    remove(&request.attachment)
}

pub(crate) fn remove(attachment: &Attachment) -> anyhow::Result<()> {
    let (owner, records) = (attachment.owner(), Records::default());
    let removed = firewall::remove_of(&owner, &records)?;
    firewall::forget(&removed.connectionless_ports());
    records.remove(&owner)
}
