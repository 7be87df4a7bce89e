//! Finds out whether RELOAD, a verb of this suite, cannot succeed because of what the container
//! itself has deleted.
//!
//! A process with `CAP_NET_ADMIN` in a container can delete the container's interface and its
//! addresses. Then no plugin can restore the attachment until the container has them again.

use cni::Attachment;
use netlink::Connection;
use runtime::Entry;

/// Returns a message about what the sandbox has lost: its interface, the link that ADD made, or all
/// addresses of its ADD. Returns `None` if it has lost none of these, or does not exist.
///
/// # Errors
/// The sandbox cannot be read.
pub(crate) fn deprivation(
    attachment: &Attachment,
    entry: &Entry,
) -> anyhow::Result<Option<String>> {
    let interface = attachment.interface.as_str();
    let Some((namespace, sandbox)) = Connection::open_if_present(entry.netns())? else {
        return Ok(None);
    };
    let Some(link) = sandbox.find_link(interface)? else {
        return Ok(Some(format!("its sandbox has no {interface} any more")));
    };
    let host_links = entry.host_links();
    let other_end = Connection::open()?.other_end(&link, &namespace)?;
    if !host_links.is_empty() && other_end.is_none_or(|it| !host_links.contains(&it.name)) {
        return Ok(Some(format!(
            "{interface} in its sandbox is not the link that ADD made"
        )));
    }
    let present = sandbox.addresses(link.index)?;
    let is_present = |address| present.iter().any(|it| it.address.ip() == address);
    let reported = entry.reported().ips;
    let is_kept = reported.is_empty() || reported.iter().any(|it| is_present(it.address.ip()));
    let lost = format!("{interface} in its sandbox has no address of its ADD any more");
    Ok((!is_kept).then_some(lost))
}
