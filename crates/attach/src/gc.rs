//! GC: deletes veth pairs and `nf_tables` elements of attachments that the runtime does not list,
//! then releases their leases.

use std::collections::BTreeSet;

use cni::{Attachment, GcRequest, Verb, note};
use netlink::{Connection, Link, LinkKind};
use nft::Table;

use crate::guard::Removal;
use crate::names::{HOST_MAC, host_link_name, is_host_end, is_host_link_name, is_marked_mac};
use crate::{del, guard};

/// Removes the veth pairs, `nf_tables` elements and leases of those attachments of this network
/// that the runtime does not list.
///
/// # Errors
/// At least one step failed; the error names all failures. GC continues after a failed step, with
/// two exceptions. If a veth pair cannot be deleted, GC keeps the elements of the pair's
/// attachment, which protect the host from the container. It also releases no leases at all,
/// because a container's address must not be leased again while the container's pair exists.
pub fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let valid: BTreeSet<_> = request.valid.iter().map(host_link_name).collect();
    // The alias alone does not prove that a link is the host's end of a veth pair: a container can
    // set any alias on a link of the host in its sandbox, and the link keeps the alias when it
    // returns to the host. So the link must be a veth. If an operator renamed it, its other end
    // must be in another namespace. Without a tag, its name must have our form, too, because other
    // programs also make veths whose MACs start with `fe` (LXC).
    let may_be_host_end = |link: &Link| {
        let is_tagged = link.alias.as_deref().is_some_and(Attachment::is_owner);
        let is_renamed = is_tagged && link.peer_namespace.is_some();
        link.kind == LinkKind::Veth && (is_renamed || is_host_link_name(&link.name))
    };
    cni::step("delete pairs");
    let links = delete_stale_links(request, may_be_host_end, HOST_MAC, &valid);
    cni::step("remove nf_tables elements");
    let kept = match links {
        Ok(()) => Ok(Vec::new()),
        Err(_) => Connection::open().and_then(|host| host.links()),
    };
    let elements = kept.map_err(anyhow::Error::from);
    let elements = elements.and_then(|it| remove_stale_elements(request, guard::tables(), &it));
    cni::step("release leases");
    let leases = match links {
        Ok(()) => del::forward(&request.network, Verb::Gc),
        Err(_) => Ok(()),
    };
    cni::all([links, elements, leases])
}

/// Deletes stale links of the host. Considers only links that `is_of_plugin` accepts. A link is
/// stale if its alias is the tag ([`cni::Attachment::owner`]) of an attachment of this network that
/// the runtime does not list.
///
/// An ADD that is killed early leaves a link without an alias, and an operator may have replaced an
/// alias. A link whose alias is no tag is stale if both are true:
///
/// - Its MAC is a [`marked_mac`](crate::marked_mac) of this network that starts with the byte
///   `first`.
/// - Its name is not in `valid`, the link names of all attachments that the runtime lists.
///
/// # Errors
/// All requests that the kernel refuses.
pub fn delete_stale_links(
    request: &GcRequest,
    is_of_plugin: impl Fn(&Link) -> bool,
    first: u8,
    valid: &BTreeSet<String>,
) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let is_stale = request.stale();
    let network = &request.network.name;
    let is_marked = |link: &Link| link.mac.is_some_and(|it| is_marked_mac(it, first, network));
    let is_unlisted = |link: &Link| is_marked(link) && !valid.contains(&link.name);
    let links = host.links()?.into_iter().filter(is_of_plugin);
    cni::all(links.map(|link| {
        let whose = match &link.alias {
            Some(owner) if is_stale(owner) => format!("{owner}, which the runtime does not list"),
            Some(owner) if Attachment::is_owner(owner) => return Ok(()),
            Some(alias) if is_unlisted(&link) => format!("this network, with the alias {alias}"),
            None if is_unlisted(&link) => "an interrupted ADD".to_owned(),
            _ => return Ok(()),
        };
        host.remove_link(&link)?;
        note(format_args!("{} of {whose}: deleted", link.name));
        Ok(())
    }))
}

/// Removes `nf_tables` elements from `tables`: those of attachments of this network that the
/// runtime does not list. Keeps the elements of an attachment if one of the links `kept` is the
/// host's end of its veth pair.
///
/// # Errors
/// The kernel refuses a request.
pub fn remove_stale_elements(
    request: &GcRequest,
    tables: [Table; 2],
    kept: &[Link],
) -> anyhow::Result<()> {
    let mut removal = Removal::start(tables)?;
    let is_stale = request.stale();
    let is_kept = |owner: &str| {
        let attachment = Attachment::of_owner(owner);
        attachment.is_some_and(|attachment| kept.iter().any(|it| is_host_end(it, &attachment)))
    };
    let removed = removal.remove(|owner| is_stale(owner) && !is_kept(owner));
    for owner in removal.finish() {
        note(format_args!(
            "deleted nf_tables elements of {owner}, which the runtime does not list"
        ));
    }
    removed
}
