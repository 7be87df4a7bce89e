//! GC: `nf_tables` elements and host links of attachments that nobody lists, then the leases.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, NetworkName, Verb, note};
use netlink::{Connection, Link, LinkKind};

use crate::plan::{self, host_link_name};
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
    let names: HashSet<_> = request
        .valid_attachments()
        .map(|it| host_link_name(&it))
        .collect();
    for link in host.links()? {
        match &link.alias {
            Some(owner) if is_doomed(owner) => {
                note(format_args!(
                    "{} of {owner} is listed no more: deleted",
                    link.name
                ));
            }
            None if is_nameless(&link, network) && !names.contains(&link.name) => {
                note(format_args!(
                    "{} of an ADD that was cut short: deleted",
                    link.name
                ));
            }
            _ => continue,
        }
        match host.delete_link(&link) {
            Err(error) if !error.is_not_found() => outcomes.push(Err(error.into())),
            _ => {}
        }
    }
    drop(lock);
    outcomes.push(del::forward(&request.network, Verb::Gc));
    del::all(outcomes)
}

/// A pair of an ADD that was killed after the message that makes it and before the one that says
/// whose it is.
fn is_nameless(link: &Link, network: &NetworkName) -> bool {
    let is_ours = |mac| plan::is_host_mac_in(network, mac);
    link.alias.is_none() && link.kind == LinkKind::Veth && link.mac.is_some_and(is_ours)
}
