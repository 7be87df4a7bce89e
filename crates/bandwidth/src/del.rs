//! DEL: the ifb and the backstop. The host's end of the pair takes its qdiscs along when it goes, which
//! is up to the plugin that made it.

use cni::{DelRequest, note};
use netlink::{Connection, Link, Removal};
use tc::Arriving;

use crate::backstop;
use crate::host_link;
use crate::ifb::{self, Found};

/// Deletes the attachment's ifb and its backstop, in this order: a RELOAD that added the backstop after the last
/// look finds no ifb then, and takes it back. What is not there is deleted. An ifb of the reference may be another
/// interface's of the container: it is deleted where no link but the attachment's sends to it.
///
/// # Errors
/// All that the kernel refuses; each step is tried.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("delete the ifb");
    let (ifbs, removal) = match delete_ifbs(request) {
        Ok(mut removals) => (Ok(()), removals.pop()),
        Err(error) => (Err(error), None),
    };
    cni::step("remove the backstop");
    let owner = request.attachment.owner();
    let backstop = backstop::remove(|it| it == owner).map(|it| drop(it.close(removal)));
    cni::all([ifbs, backstop])
}

fn delete_ifbs(request: &DelRequest) -> anyhow::Result<Vec<Removal>> {
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
pub(crate) fn delete_all(host: &Connection, ifbs: &[Link]) -> anyhow::Result<Vec<Removal>> {
    let mut removals = Vec::new();
    let deleted = cni::all(ifbs.iter().map(|link| {
        removals.extend(ifb::delete(host, link)?);
        Ok(())
    }));
    deleted.map(|()| removals)
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
