//! Finds out whether a container has deleted what RELOAD needs. RELOAD is a verb of this suite that
//! restores lost firewall rules.
//!
//! A process with `CAP_NET_ADMIN` in a container can delete the container's interface. Then no
//! plugin can restore the attachment until the container has the interface again.
//!
//! An interface without addresses is no such loss if it is the one that ADD created: gVisor, for
//! example, removes the addresses from the interface, because it has a network stack of its own.

use attach::is_host_end;
use cni::Attachment;
use netlink::{Connection, Link};
use runtime::Entry;

/// Returns a message if the sandbox's interface is missing, or if another link has replaced the one
/// that ADD created. If the result of ADD names no link of the host, only the addresses show
/// whether the interface is that of ADD, so the function also returns a message if the interface
/// has lost all of them. Returns `None` if nothing of this is lost, or if the sandbox does not
/// exist.
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
    if !host_links.is_empty() {
        let other_end = Connection::open()?.other_end(&link, &namespace)?;
        let is_of_add = |it: &Link| host_links.contains(&it.name) || is_host_end(it, attachment);
        let is_of_add = other_end.as_ref().is_some_and(is_of_add);
        let lost = format!("{interface} in its sandbox is not the link that ADD made");
        return Ok((!is_of_add).then_some(lost));
    }
    let present = sandbox.addresses(link.index)?;
    let is_present = |address| present.iter().any(|it| it.address.ip() == address);
    let reported = entry.reported().ips;
    let is_kept = reported.is_empty() || reported.iter().any(|it| is_present(it.address.ip()));
    let lost = format!("{interface} in its sandbox has no address of its ADD any more");
    Ok((!is_kept).then_some(lost))
}
