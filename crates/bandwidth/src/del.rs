//! DEL: the backstop and the ifb. The host's end of the pair takes its qdiscs along when it goes, which
//! is up to the plugin that made it.

use cni::{DelRequest, note};
use netlink::{Connection, Link, Removal};
use tc::Arriving;

use crate::backstop;
use crate::host_link;
use crate::ifb::{self, Found};

/// Deletes the attachment's backstop and its ifb. What is not there is deleted. An ifb of the reference may be another
/// interface's of the container: it is deleted where no link but the attachment's sends to it.
///
/// Without an ifb there is no backstop: ADD makes the ifb first, and here it goes last. That spares most containers,
/// which have no limit, a look at `nf_tables`, which may take as long as another process's deletion.
///
/// # Errors
/// All that the kernel refuses; each step is tried.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("find the ifb");
    let host = Connection::open()?;
    let ifbs = find(&host, request)?;
    if ifbs.is_empty() {
        return Ok(());
    }
    let owner = request.attachment.owner();
    cni::step("remove the backstop");
    let mut backstop = backstop::Removal::start()?;
    let first = backstop.remove(|it| it == owner);
    cni::step("delete the ifb");
    let (deleted, mut removals) = match delete_all(&host, &ifbs) {
        Ok(removals) => (Ok(()), removals),
        Err(error) => (Err(error), Vec::new()),
    };
    // A RELOAD may have put it back. From now on it finds no ifb, and takes it back by itself.
    let second = backstop.remove(|it| it == owner);
    backstop.finish(removals.pop());
    cni::all([first, deleted, second])
}

/// The ifbs that go.
fn find(host: &Connection, request: &DelRequest) -> anyhow::Result<Vec<Link>> {
    let Found { mut own, unclaimed } = ifb::find(host, &request.attachment)?;
    for link in unclaimed {
        match somebody_else_at(&link, host, request)? {
            None => own.push(link),
            Some(sender) => note(format_args!(
                "{} stays: {sender} sends to it, which is not known to be the link of {}",
                link.name, request.attachment
            )),
        }
    }
    Ok(own)
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
