//! DEL and GC: remove egress limits in `nf_tables` (backstops), ifbs, and records of the bandwidth
//! that the kubelet allocated. They do not remove the qdiscs of a veth pair: these disappear when
//! the plugin that created the pair deletes it.

use std::collections::BTreeSet;

use attach::Removal;
use cni::{DelRequest, GcRequest, note};
use netlink::{Connection, Link, LinkKind};
use serde::de::IgnoredAny;
use tc::LinkIngress;

use crate::ifb::{self, Found, Ifbs, delete_all};
use crate::{backstop, host_link, record};

/// Removes the attachment's limits and its record. A missing limit or record counts as removed.
///
/// # Errors
/// The kernel refuses a request, or the record cannot be removed. An error with the limits does not
/// stop the removal of the record.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::all([remove_limits(request), remove_record(request)])
}

/// Deletes the attachment's ifb and its backstop (second egress limit in `nf_tables`). An ifb that
/// the Go plugin created stays if a link of another attachment, such as another interface of the
/// container, redirects packets to it.
///
/// Without an ifb there is no backstop, because ADD creates the ifb before the backstop, and DEL
/// removes the backstop before the ifb. So DEL of a container without limits, the most common case,
/// does not access `nf_tables`. Such an access might have to wait until another process has
/// completed a deletion in `nf_tables`.
fn remove_limits(request: &DelRequest) -> anyhow::Result<()> {
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
    // A concurrent RELOAD, a verb of this suite, may have restored the backstop since the first
    // removal. A RELOAD that restores the backstop after this second removal finds no ifb, and
    // removes the backstop itself.
    let second = backstop.remove(|it| it == owner);
    backstop.finish();
    cni::all([first, deleted, second])
}

/// Removes the record of the bandwidth that the kubelet allocated to the pod. Does nothing if the
/// configuration lacks the key `podResources`, because ADD then writes no record. If the key is
/// `false` now, the function still removes the record that an earlier ADD may have written.
fn remove_record(request: &DelRequest) -> anyhow::Result<()> {
    let key = request.network.key::<Option<IgnoredAny>>("podResources")?;
    if key.is_none() {
        return Ok(());
    }
    cni::step("remove the record");
    record::remove(&request.attachment.owner())
}

/// Returns the ifbs that DEL deletes: the attachment's own, and those of the Go plugin that no
/// other attachment may use. Logs on standard error the ifbs that stay because another attachment
/// may use them.
fn find(host: &Connection, request: &DelRequest) -> anyhow::Result<Vec<Link>> {
    let attachment = &request.attachment;
    let Found { mut own, unclaimed } = Ifbs { host, attachment }.find()?;
    for link in unclaimed {
        match foreign_sender(&link, host, request)? {
            None => own.push(link),
            Some(sender) => note(format_args!(
                "ifb {} is not deleted: {sender} sends to it, and is not known to be the link of {}",
                link.name, request.attachment
            )),
        }
    }
    Ok(own)
}

/// Returns the name of a link that redirects packets to `ifb` and may belong to another attachment.
/// `None` if every link that redirects packets to `ifb` belongs to this attachment.
fn foreign_sender(
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

/// Deletes three kinds of objects of this network, if they belong to no attachment in the runtime's
/// list: ifbs, backstops (second egress limits in `nf_tables`), and records of the bandwidth that
/// the kubelet allocated. An ifb that only the Go plugin used stays, because it does not show its
/// network.
///
/// # Errors
/// All errors that occurred. An error does not stop the deletion of other objects.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: BTreeSet<_> = request.valid.iter().flat_map(ifb::names).collect();
    let is_ifb = |link: &Link| link.kind == LinkKind::Ifb;
    cni::step("delete ifbs");
    let ifbs = attach::delete_stale_links(request, is_ifb, ifb::MAC, &valid);
    cni::step("remove backstops");
    let backstops = attach::remove_stale_elements(request, backstop::tables(), &[]);
    cni::step("remove records");
    cni::all([ifbs, backstops, record::collect(request)])
}
