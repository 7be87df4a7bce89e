//! GC: removes ifbs and backstops of unlisted attachments.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, note};
use netlink::{Connection, LinkKind};

use crate::{backstop, ifb};

/// Deletes ifbs and backstops of this network that belong to no listed attachment. Ifbs of the
/// reference do not name their network and stay.
///
/// # Errors
/// All errors; every object is tried.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_stale = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    cni::step("delete ifbs");
    let ifbs = delete_ifbs(request, is_stale);
    cni::step("remove backstops");
    cni::all([ifbs, remove_backstops(is_stale)])
}

fn remove_backstops(is_stale: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let mut removal = backstop::Removal::start()?;
    let removed = removal.remove(is_stale);
    for owner in removal.finish() {
        note(format_args!(
            "removed the backstop of {owner}, which the runtime does not list"
        ));
    }
    removed
}

fn delete_ifbs(request: &GcRequest, is_stale: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let network = &request.network.name;
    let names: HashSet<_> = request
        .valid_attachments()
        .flat_map(|it| ifb::names(&it))
        .collect();
    let mut outcomes = Vec::new();
    let mut links = host.links()?;
    links.retain(|link| link.kind == LinkKind::Ifb);
    for link in links {
        match &link.alias {
            Some(owner) if is_stale(owner) => {
                note(format_args!(
                    "deleted {} of {owner}, which the runtime does not list",
                    link.name
                ));
            }
            None if ifb::is_unowned(&link, network) && !names.contains(&link.name) => {
                note(format_args!("deleted {} of an interrupted ADD", link.name));
            }
            _ => continue,
        }
        outcomes.push(ifb::delete(&host, &link));
    }
    cni::all(outcomes)
}
