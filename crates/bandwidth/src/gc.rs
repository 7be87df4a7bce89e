//! GC: removes ifbs, `nf_tables` limits and allocation records of attachments that the runtime does
//! not list.

use std::collections::BTreeSet;

use cni::GcRequest;
use netlink::{Link, LinkKind};

use crate::{backstop, ifb, record};

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
