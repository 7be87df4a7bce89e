//! DEL: removes the ports, then the record.

use cni::{Attachment, DelRequest};

use crate::record::{self, Record};
use crate::{firewall, localnet};

/// Removes the ports and the record of the attachment. A missing item counts as removed.
///
/// # Errors
/// The kernel refuses a request. The record then stays.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    remove(&request.attachment)
}

/// Removes the ports and the record of `attachment`.
pub(crate) fn remove(attachment: &Attachment) -> anyhow::Result<()> {
    let owner = attachment.owner();
    cni::step("remove the ports");
    let retired = record::files().retire(&owner);
    let record = retired.text().and_then(Record::parse);
    firewall::remove(|it| it == owner, record.as_ref())?;
    localnet::release(&owner, record.as_ref())?;
    retired.remove()
}
