//! DEL: removes the backstop and the ifb. The qdiscs of the pair disappear with it; the plugin that
//! created the pair deletes it.

use attach::Removal;
use cni::{DelRequest, note};
use netlink::{Connection, Link};
use tc::LinkIngress;

use crate::backstop;
use crate::host_link;
use crate::ifb::{self, Found};

/// Deletes the attachment's backstop and ifb; absent ones count as deleted. An ifb of the reference
/// may belong to another interface of the container. It is deleted if no other link redirects to
/// it.
///
/// Without an ifb there is no backstop: ADD creates the ifb first and DEL deletes it last. So DEL
/// of a container without limits, the most common case, does not access `nf_tables`. Such an access
/// may wait for another process's deletion.
///
/// # Errors
/// All refusals of the kernel; each step is tried.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("find the ifb");
    let host = Connection::open()?;
    let ifbs = find(&host, request)?;
    if ifbs.is_empty() {
        return Ok(());
    }
    let owner = request.attachment.owner();
    cni::step("remove the backstop");
    let mut backstop = Removal::start(backstop::tables())?;
    let first = backstop.remove(|it| it == owner);
    cni::step("delete the ifb");
    let deleted = delete_all(&host, &ifbs);
    // A RELOAD may have restored it meanwhile. From now on it finds no ifb and removes it itself.
    let second = backstop.remove(|it| it == owner);
    backstop.finish();
    cni::all([first, deleted, second])
}

/// Returns the ifbs to delete.
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

/// Deletes the ifbs; fails with all refusals of the kernel.
pub(crate) fn delete_all(host: &Connection, ifbs: &[Link]) -> anyhow::Result<()> {
    cni::all(ifbs.iter().map(|link| Ok(host.remove_link(link)?)))
}

/// Returns the name of a link of another attachment that redirects to `ifb`.
fn somebody_else_at(
    ifb: &Link,
    host: &Connection,
    request: &DelRequest,
) -> anyhow::Result<Option<String>> {
    let mut senders = Vec::new();
    for link in host.links()? {
        if LinkIngress::new(host, &link).redirects_to(ifb)? {
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
