//! GC: removes host links and `nf_tables` elements of unlisted attachments, then leases.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, NetworkName, Verb, note};
use netlink::{Connection, Link, LinkKind};

use crate::names::{self, host_link_name};
use crate::{del, guard};

/// Removes resources of this network that belong to no listed attachment.
///
/// # Errors
/// All errors. Every step is tried except for leases: they stay if a port could not be deleted,
/// since its address must not be leased again.
pub fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let valid: HashSet<_> = request.valid_attachments().map(|it| it.owner()).collect();
    let network = &request.network.name;
    let is_stale = |owner: &str| Attachment::is_owner_in(owner, network) && !valid.contains(owner);
    cni::step("delete pairs");
    let stale = stale_links(&host, request, is_stale)?.into_iter();
    let links = cni::all(stale.map(|(link, whose)| {
        del::remove(&host, &link)?;
        note(format_args!("{} of {whose}: deleted", link.name));
        Ok(())
    }));
    cni::step("remove nf_tables elements");
    let elements = guard::remove(is_stale).map(|owners| {
        for owner in owners {
            note(format_args!(
                "deleted nf_tables elements of {owner}, which the runtime does not list"
            ));
        }
    });
    cni::step("release leases");
    let leases = match links {
        Ok(()) => del::forward(&request.network, Verb::Gc),
        Err(_) => Ok(()),
    };
    cni::all([links, elements, leases])
}

/// Returns host ends of this network that belong to no listed attachment, with a description of
/// their owners.
fn stale_links(
    host: &Connection,
    request: &GcRequest,
    is_stale: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<(Link, String)>> {
    let valid = request.valid_attachments();
    let valid: HashSet<_> = valid.map(|it| host_link_name(&it)).collect();
    // A container can set an alias on a network card, which returns to the host with it.
    let is_host_end =
        |link: &Link| link.kind == LinkKind::Veth && names::is_host_link_name(&link.name);
    let ends = host.links()?.into_iter().filter(is_host_end);
    let stale = ends.filter_map(|link| {
        let whose = match &link.alias {
            Some(owner) if is_stale(owner) => format!("{owner}, which the runtime does not list"),
            None if is_unowned(&link, &request.network.name) && !valid.contains(&link.name) => {
                "an interrupted ADD".to_owned()
            }
            _ => return None,
        };
        Some((link, whose))
    });
    Ok(stale.collect())
}

/// Returns whether an ADD was killed after it created this pair and before it set the alias.
fn is_unowned(link: &Link, network: &NetworkName) -> bool {
    let is_marked = |mac| names::is_host_mac_in(network, mac);
    link.alias.is_none() && link.mac.is_some_and(is_marked)
}
