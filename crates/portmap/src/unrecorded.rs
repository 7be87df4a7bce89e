//! Finds out whether an attachment without a record (a file that ADD writes) may still exist.
//!
//! After a boot, a saved ruleset may bring back elements of sandboxes that ended with the previous
//! boot. But an operator may also have deleted the record of a live attachment, which is below `/run`.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use attach::{coded, is_host_end_of};
use netlink::{Connection, Link, LinkKind, Route};

use crate::record::{self, Record};
use crate::{forward, table};

/// Returns whether the attachment with the tag `owner` may still exist. One of two signs is enough:
///
/// - A link is the host's end of its veth pair.
/// - A link may be the host's link to the sandbox: no record lists it, [`may_lead_to_unknown`]
///   accepts it, and a route to one of the container's addresses uses this link or its bridge,
///   without a gateway.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn may_live(firewall: &nft::Connection, owner: &str) -> anyhow::Result<bool> {
    let host = Connection::open()?;
    let links = host.links()?;
    if links.iter().any(|it| is_host_end_of(it, owner)) {
        return Ok(true);
    }
    let elements = firewall.elements_owned(&table::table(), |it| it == owner);
    let elements = elements.map_err(coded)?;
    let pods: BTreeSet<IpAddr> = elements
        .iter()
        .filter_map(forward)
        .map(|it| it.pod)
        .collect();
    let routes = host.routes_to(&pods.into_iter().collect::<Vec<_>>())?;
    let direct = routes.iter().flatten().filter(|it| it.gateway.is_none());
    let towards: HashSet<u32> = direct.flat_map(Route::links).collect();
    let others = recorded_links()?;
    let mut candidates = links.iter().filter(|it| {
        let is_port = it.master.is_some_and(|master| towards.contains(&master));
        (is_port || towards.contains(&it.index)) && !others.contains(&it.index)
    });
    Ok(candidates.any(may_lead_to_unknown))
}

/// Returns whether `link`, which no record lists, may be the host's link to a sandbox. A veth whose
/// alias is the tag of an attachment does not count: [`may_live`] has found no link with the tag
/// that it looks for, so the veth belongs to another attachment.
fn may_lead_to_unknown(link: &Link) -> bool {
    let is_tagged = link
        .alias
        .as_deref()
        .is_some_and(|it| it.starts_with("cni:"));
    match link.kind {
        LinkKind::Veth => !is_tagged && link.peer_namespace.is_some(),
        LinkKind::Loopback | LinkKind::Bridge | LinkKind::Ifb => false,
        // A physical or VLAN interface that is a port of a bridge is an uplink of the bridge, so no
        // sandbox is behind it. Without a bridge, it may have a sandbox behind it, because a route
        // points to it.
        LinkKind::Physical | LinkKind::Vlan(_) => link.master.is_none(),
        _ => true,
    }
}

/// Returns the indices of the host's links that belong to attachments with a record.
fn recorded_links() -> anyhow::Result<HashSet<u32>> {
    let owners = record::files().owners()?.into_iter();
    let records = owners.filter_map(|owner| Record::read(&owner));
    Ok(records.filter_map(|it| it.host_link).collect())
}
