//! GC: `nf_tables` elements and host links of attachments that nobody lists, then the leases.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, Verb, note};
use netlink::Connection;

use crate::{del, firewall};

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// All that went wrong; every step is tried.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_doomed = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    let mut outcomes = Vec::new();
    let lock = del::keep_reload_out();
    match firewall::remove(is_doomed) {
        Err(error) => outcomes.push(Err(error)),
        Ok(removed) => removed.owners.iter().for_each(|owner| {
            note(format_args!(
                "nf_tables elements of {owner} are listed no more: deleted"
            ));
        }),
    }
    let links = host.links()?;
    let doomed = links
        .iter()
        .filter_map(|link| Some((link, link.alias.as_deref()?)));
    for (link, owner) in doomed.filter(|(_, owner)| is_doomed(owner)) {
        note(format_args!(
            "{} of {owner} is listed no more: deleted",
            link.name
        ));
        match host.delete_link(link) {
            Err(error) if !error.is_not_found() => outcomes.push(Err(error.into())),
            _ => {}
        }
    }
    drop(lock);
    outcomes.push(del::forward(&request.network, Verb::Gc));
    del::all(outcomes)
}
