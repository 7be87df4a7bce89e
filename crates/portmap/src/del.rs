//! DEL: removes the ports, then the record.

use cni::{Attachment, DelRequest};

use crate::record::Records;
use crate::{firewall, localnet};

/// Removes the ports and the record of the attachment. A missing item counts as removed.
///
/// # Errors
/// Refusals of the kernel; the record then stays.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    remove(&request.attachment)
}

pub(crate) fn remove(attachment: &Attachment) -> anyhow::Result<()> {
    let (owner, records) = (attachment.owner(), Records::default());
    cni::step("remove the ports");
    records.retire(&owner);
    let record = records.read(&owner);
    firewall::remove(|it| it == owner, record.as_ref(), &records)?;
    localnet::release(&owner, record.as_ref())?;
    records.remove(&owner)
}
