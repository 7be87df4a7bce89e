//! DEL: removes the ports, then the record.

use attach::Writing;
use cni::{Attachment, DelRequest};

use crate::record::{Record, Records};
use crate::{firewall, localnet};

/// Removes the ports and the record of the attachment. A missing item counts as removed.
///
/// # Errors
/// Refusals of the kernel; the record then stays.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    remove(&request.attachment)
}

pub(crate) fn remove(attachment: &Attachment) -> anyhow::Result<()> {
    let (owner, records) = (attachment.owner(), Records::new(Writing::All));
    cni::step("remove the ports");
    let retired = records.files.retire(&owner);
    let record = retired.text().and_then(Record::parse);
    firewall::remove(|it| it == owner, record.as_ref(), &records)?;
    localnet::release(&owner, record.as_ref())?;
    retired.remove()
}
