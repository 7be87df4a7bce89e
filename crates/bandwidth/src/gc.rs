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
    cni::step("delete ifbs");
    let host = Connection::open()?;
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_doomed = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    let names: HashSet<_> = request
        .valid_attachments()
        .flat_map(|it| ifb::names(&it))
        .collect();
    let mut outcomes = Vec::new();
    let mut links = host.links()?;
    links.retain(|link| link.kind == LinkKind::Ifb);
    for link in links {
        match &link.alias {
            Some(owner) if is_doomed(owner) => {
                note(format_args!(
                    "{} of {owner} is listed no more: deleted",
                    link.name
                ));
            }
            None if ifb::is_nameless(&link, network) && !names.contains(&link.name) => {
                note(format_args!(
                    "{} of an ADD that was cut short: deleted",
                    link.name
                ));
            }
            _ => continue,
        }
        outcomes.push(ifb::delete(&host, &link));
    }
    cni::all(outcomes)
}
