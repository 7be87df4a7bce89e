//! Finds out whether RELOAD cannot succeed because of the container itself.
//!
//! A process with `CAP_NET_ADMIN` in a container can delete the container's interface and its
//! addresses. Then no plugin can restore the attachment until the container changes them again.

use cni::{AddResult, Attachment};
use netlink::{Connection, Link};
use netns::Netns;
use runtime::Entry;

/// Returns what the attachment's sandbox has lost; `None` if it has its interface and an address.
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
    let reported = entry.reported();
    if !is_reported(&link, &namespace, &reported)? {
        return Ok(Some(format!(
            "{interface} in its sandbox is not the link that ADD made"
        )));
    }
    let present = sandbox.addresses(link.index)?;
    let is_present = |address| present.iter().any(|it| it.address.ip() == address);
    let mut addresses = reported.ips.iter().map(|it| it.address.ip());
    let is_kept = reported.ips.is_empty() || addresses.any(is_present);
    Ok(
        (!is_kept)
            .then(|| format!("{interface} in its sandbox has no address of its ADD any more")),
    )
}

/// Returns whether the other end of the sandbox's link is a link of the host that ADD reported; also
/// `true` if ADD reported no link of the host.
fn is_reported(
    link: &Link,
    namespace: &Netns,
    reported: &AddResult,
) -> Result<bool, netlink::Error> {
    let interfaces = reported.interfaces.iter();
    let on_host = interfaces.filter(|it| it.sandbox.as_deref().unwrap_or_default().is_empty());
    let names: Vec<_> = on_host.map(|it| it.name.as_str()).collect();
    let other_end = Connection::open()?.other_end(link, namespace)?;
    Ok(names.is_empty() || other_end.is_some_and(|it| names.contains(&it.name.as_str())))
}
