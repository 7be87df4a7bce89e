//! DEL: the block. The host's end of the pair takes its disciplines along when it goes, which
//! is up to the plugin that made it.

use cni::{DelRequest, note};
use netlink::{Connection, Link};
use tc::Arriving;

use crate::host_link;
use crate::ifb::{self, Found};

/// Deletes the attachment's block; where there is none, it is deleted. One of the reference may be another
/// interface's of the container: it goes where nobody sends to it but the attachment's link.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("delete the ifb");
    let host = Connection::open()?;
    let Found { mut own, unclaimed } = ifb::find(&host, &request.attachment)?;
    for link in unclaimed {
        match somebody_else_at(&link, &host, request)? {
            None => own.push(link),
            Some(sender) => note(format_args!(
                "{} stays: {sender} sends to it, which is not known to be the link of {}",
                link.name, request.attachment
            )),
        }
    }
    delete_all(&host, &own)
}

/// Deletes them.
///
/// # Errors
/// All refusals.
pub(crate) fn delete_all(host: &Connection, ifbs: &[Link]) -> anyhow::Result<()> {
    cni::all(ifbs.iter().map(|link| ifb::delete(host, link)))
}

/// The name of a link that sends to `ifb` what arrives at it, and is not the attachment's.
fn somebody_else_at(
    ifb: &Link,
    host: &Connection,
    request: &DelRequest,
) -> anyhow::Result<Option<String>> {
    let mut senders = Vec::new();
    for link in host.links()? {
        let arriving = Arriving {
            connection: host,
            link: &link,
        };
        if arriving.leads_to(ifb)? {
            senders.push(link);
        }
    }
    if senders.is_empty() {
        return Ok(None);
    }
    let ours = host_link::names(request, host)?;
    let mut senders = senders.into_iter().map(|it| it.name);
    Ok(senders.find(|name| !ours.contains(name)))
}
