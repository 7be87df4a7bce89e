//! GC: the blocks of attachments that nobody lists.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, note};
use netlink::{Connection, LinkKind};

use crate::ifb;

/// Deletes the blocks that belong to this network and to no listed attachment. One of the
/// reference's says nothing of its network, and stays.
///
/// # Errors
/// All that went wrong; every one is tried.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let mut failures = Vec::new();
    for link in host.links()? {
        let Some(owner) = &link.alias else { continue };
        let is_ours = link.kind == LinkKind::Ifb && Attachment::is_owner_in(owner, network);
        if !is_ours || valid.contains(owner) {
            continue;
        }
        note(format_args!(
            "{} of {owner} is listed no more: deleted",
            link.name
        ));
        if let Err(failure) = ifb::delete(&host, &link) {
            failures.push(format!("{failure:#}"));
        }
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}
