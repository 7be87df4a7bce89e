//! DEL: removes the attachment's ports, then its record (a file in `/run/cni/portmap`).

use cni::{Attachment, DelRequest};

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
