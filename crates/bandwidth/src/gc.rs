//! GC: removes ifbs and backstops of unlisted attachments.

use std::collections::HashSet;

use cni::GcRequest;
use netlink::{Link, LinkKind};

use crate::{backstop, ifb};

/// Deletes ifbs and backstops of this network that belong to no listed attachment. Ifbs of the
/// reference do not name their network and stay.
///
/// # Errors
/// All errors; every object is tried.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let network = &request.network.name;
    let valid: HashSet<_> = request.valid.iter().flat_map(ifb::names).collect();
    let is_ifb = |link: &Link| link.kind == LinkKind::Ifb;
    let is_unowned = |link: &Link| ifb::is_unowned(link, network) && !valid.contains(&link.name);
    cni::step("delete ifbs");
    let ifbs = attach::delete_stale_links(request, is_ifb, is_unowned);
    cni::step("remove backstops");
    let backstops = attach::remove_stale_elements(request, backstop::tables());
    cni::all([ifbs, backstops])
}
