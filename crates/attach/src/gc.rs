//! GC: removes host links and `nf_tables` elements of unlisted attachments, then leases.

use std::collections::HashSet;

use cni::{Attachment, GcRequest, Verb, note};
use netlink::{Connection, Link, LinkKind};
use nft::Table;

use crate::guard::Removal;
use crate::names::{self, host_link_name};
use crate::{del, guard};

/// Removes resources of this network that belong to no listed attachment.
///
/// # Errors
/// All errors. Every step is tried except for leases: they stay if a port could not be deleted,
/// since its address must not be leased again.
pub fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let network = &request.network.name;
    let valid: HashSet<_> = request.valid.iter().map(host_link_name).collect();
    // A container can set an alias on a network card, which returns to the host with it.
    let is_host_end =
        |link: &Link| link.kind == LinkKind::Veth && names::is_host_link_name(&link.name);
    let is_unowned = |link: &Link| {
        let is_marked = |mac| names::is_host_mac_in(network, mac);
        link.mac.is_some_and(is_marked) && !valid.contains(&link.name)
    };
    cni::step("delete pairs");
    let links = delete_stale_links(request, is_host_end, is_unowned);
    cni::step("remove nf_tables elements");
    let elements = remove_stale_elements(request, guard::tables());
    cni::step("release leases");
    let leases = match links {
        Ok(()) => del::forward(&request.network, Verb::Gc),
        Err(_) => Ok(()),
    };
    cni::all([links, elements, leases])
}

/// Deletes links of the host that `is_of_plugin` accepts, if their alias is an owner in this network
/// that the runtime does not list. An ADD that was killed may leave a link without alias, which
/// `is_unowned` recognizes.
///
/// # Errors
/// All refusals of the kernel.
pub fn delete_stale_links(
    request: &GcRequest,
    is_of_plugin: impl Fn(&Link) -> bool,
    is_unowned: impl Fn(&Link) -> bool,
) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let is_stale = stale(request);
    let links = host.links()?.into_iter().filter(is_of_plugin);
    cni::all(links.map(|link| {
        let whose = match &link.alias {
            Some(owner) if is_stale(owner) => format!("{owner}, which the runtime does not list"),
            None if is_unowned(&link) => "an interrupted ADD".to_owned(),
            _ => return Ok(()),
        };
        host.remove_link(&link)?;
        note(format_args!("{} of {whose}: deleted", link.name));
        Ok(())
    }))
}

/// Removes elements of this network that belong to no listed attachment from `tables`.
///
/// # Errors
/// Refusals of the kernel.
pub fn remove_stale_elements(request: &GcRequest, tables: [Table; 2]) -> anyhow::Result<()> {
    let mut removal = Removal::start(tables)?;
    let removed = removal.remove(stale(request));
    for owner in removal.finish() {
        note(format_args!(
            "deleted nf_tables elements of {owner}, which the runtime does not list"
        ));
    }
    removed
}

/// Returns whether an owner is one of this network that the runtime does not list.
fn stale(request: &GcRequest) -> impl Fn(&str) -> bool {
    let valid: HashSet<_> = request.valid.iter().map(Attachment::owner).collect();
    let network = &request.network.name;
    move |owner| Attachment::is_owner_in(owner, network) && !valid.contains(owner)
}
