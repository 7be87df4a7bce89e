//! GC: host links and `nf_tables` elements of attachments that are not listed, then the leases.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, NetworkName, Verb, note};
use netlink::{Connection, Link, LinkKind};

use crate::plan::{self, host_link_name};
use crate::{del, firewall};

/// Removes what belongs to this network and to no listed attachment.
///
/// # Errors
/// All that went wrong. Every step is tried, but for the leases: while the port of one of them lives
/// none can be told from it, and none must be leased again.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_doomed = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    cni::step("delete pairs");
    let stale = stale_links(&host, request, is_doomed)?.into_iter();
    let links = cni::all(stale.map(|(link, whose)| {
        del::remove(&host, &link)?;
        note(format_args!("{} of {whose}: deleted", link.name));
        Ok(())
    }));
    cni::step("remove nf_tables elements");
    let elements = firewall::remove(is_doomed).map(|removed| {
        removed.owners.iter().for_each(|owner| {
            note(format_args!(
                "nf_tables elements of {owner} are listed no more: deleted"
            ));
        });
    });
    cni::step("release leases");
    let leases = match links {
        Ok(()) => del::forward(&request.network, Verb::Gc),
        Err(_) => Ok(()),
    };
    cni::all([links, elements, leases])
}

/// The host's ends that belong to this network and to no listed attachment, and whose they are in
/// words.
fn stale_links(
    host: &Connection,
    request: &GcRequest,
    is_doomed: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<(Link, String)>> {
    let valid = request.valid_attachments();
    let valid: HashSet<_> = valid.map(|it| host_link_name(&it)).collect();
    // What a container with a network card writes on it comes back to the host with the card.
    let is_host_end =
        |link: &Link| link.kind == LinkKind::Veth && plan::is_host_link_name(&link.name);
    let ends = host.links()?.into_iter().filter(is_host_end);
    let stale = ends.filter_map(|link| {
        let whose = match &link.alias {
            Some(owner) if is_doomed(owner) => format!("{owner}, which is listed no more"),
            None if is_nameless(&link, &request.network.name) && !valid.contains(&link.name) => {
                "an ADD that was cut short".to_owned()
            }
            _ => return None,
        };
        Some((link, whose))
    });
    Ok(stale.collect())
}

/// A pair of an ADD that was killed after the message that makes it and before the one that says
/// whose it is.
fn is_nameless(link: &Link, network: &NetworkName) -> bool {
    let is_marked = |mac| plan::is_host_mac_in(network, mac);
    link.alias.is_none() && link.mac.is_some_and(is_marked)
}
