//! GC: removes ifbs, backstops and records of unlisted attachments.

use std::collections::BTreeSet;

use cni::GcRequest;
use netlink::{Link, LinkKind};

use crate::{backstop, ifb, record};

/// Deletes ifbs, backstops (second limits in `nf_tables`) and records of this network that belong
/// to no attachment in the runtime's list. Ifbs that the Go plugin created stay, because they do
/// not show their network.
///
/// # Errors
/// All errors that occurred. An error does not stop the deletion of other objects.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: BTreeSet<_> = request.valid.iter().flat_map(ifb::names).collect();
    let is_ifb = |link: &Link| link.kind == LinkKind::Ifb;
    cni::step("delete ifbs");
    let ifbs = attach::delete_stale_links(request, is_ifb, ifb::MAC, &valid);
    cni::step("remove backstops");
    let backstops = attach::remove_stale_elements(request, backstop::tables());
    cni::step("remove records");
    cni::all([ifbs, backstops, record::collect(request)])
}
