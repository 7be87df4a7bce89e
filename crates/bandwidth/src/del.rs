//! DEL: the block. The host's end of the pair takes its disciplines along when it goes, which
//! is up to the plugin that made it.

use cni::{Attachment, DelRequest};
use netlink::Connection;

use crate::ifb;

/// Deletes the attachment's block; where there is none, it is deleted.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    delete_ifbs(&Connection::open()?, &request.attachment)
}

/// Deletes the blocks of `attachment`.
///
/// # Errors
/// The first refusal.
pub(crate) fn delete_ifbs(host: &Connection, attachment: &Attachment) -> anyhow::Result<()> {
    for link in ifb::find(host, attachment)? {
        ifb::delete(host, &link)?;
    }
    Ok(())
}
