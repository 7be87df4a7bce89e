//! DEL and GC: remove veth pairs, their `nf_tables` elements and leases. DEL: of one attachment. GC:
//! of all that the runtime does not list.

use std::collections::BTreeSet;

use anyhow::bail;
use cni::delegate::{Delegate, Started};
use cni::{Attachment, DelRequest, GcRequest, Network, Verb, note};
use netlink::{Connection, Link, LinkKind};
use nft::Table;

use crate::lease::uses_link;
use crate::names::{HOST_MAC, is_host_link_name, is_marked_mac};
use crate::{Removal, Topology, guard, host_link_name, is_host_end};

/// Deletes the veth pair, removes its `nf_tables` elements and releases the lease. Releases the
/// lease first if the IPAM plugin uses the link for that. A missing object counts as removed. Also
/// deletes a veth pair that a Go plugin made. Such a pair has no tag, so DEL recognises it by
/// [`Topology::is_foreign_end`].
///
/// RELOAD, a verb of this suite, restores `nf_tables` elements. DEL needs no lock against a
/// concurrent RELOAD of the attachment, because DEL deletes the pair before it removes elements. If
/// RELOAD adds elements before DEL looks for them, DEL removes them. If RELOAD adds elements later,
/// RELOAD finds that the pair is gone and removes them itself.
///
/// # Errors
/// All errors of the steps. If the pair cannot be deleted, or if a link may be its host end but is
/// not certain to be, the elements and the lease stay, because the container's address must not be
/// leased again while the pair exists.
pub(crate) fn del<T: Topology>(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("start the IPAM plugin");
    // The executable of the IPAM plugin starts now, while DEL deletes the veth pair. DEL sends it
    // the request only after the deletion, so the plugin does not release the lease of an existing
    // pair.
    let lease = start(&request.network, Verb::Del);
    let (early, lease) = match uses_link(&request.network) {
        Ok(true) => {
            cni::step("release the lease");
            (finish(lease), Ok(None))
        }
        _ => (Ok(()), lease),
    };
    let host = Connection::open()?;
    let attachment = &request.attachment;
    cni::step("delete the pair");
    match find_host_link(&host, attachment)? {
        Some(link) => host.remove_link(&link)?,
        None => delete_container_link::<T>(&host, request)?,
    }
    cni::step("remove nf_tables elements");
    let protection = remove_protection(attachment);
    cni::step("release the lease");
    cni::all([early, protection, finish(lease)])
}

/// Waits for the IPAM plugin, if the network has one.
pub(crate) fn finish(lease: Result<Option<Started<'_>>, cni::Error>) -> anyhow::Result<()> {
    Ok(lease?.map_or(Ok(()), Started::finish)?)
}

/// Removes the attachment's `nf_tables` elements from the tables of this crate.
pub(crate) fn remove_protection(attachment: &Attachment) -> anyhow::Result<()> {
    let owner = attachment.owner();
    let mut removal = Removal::start(guard::tables())?;
    removal.remove(|it| it == owner)?;
    removal.finish();
    Ok(())
}

/// Calls the IPAM plugin of the network with `verb`. Does nothing if the network has no IPAM
/// plugin.
///
/// # Errors
/// The plugin cannot be run, or reports an error.
pub fn forward(network: &Network, verb: Verb) -> anyhow::Result<()> {
    finish(start(network, verb))
}

/// Starts the IPAM plugin without its request; `None` if the network has none.
pub(crate) fn start(network: &Network, verb: Verb) -> Result<Option<Started<'_>>, cni::Error> {
    let delegate = Delegate::ipam(network)?;
    delegate.map(|it| it.start(verb)).transpose()
}

/// Finds the host's end of the veth pair, which [`is_host_end`] recognises. Returns `None`
/// if it does not exist.
///
/// The host's end usually has the name that [`host_link_name`] derives from the attachment.
/// If it does not, the function lists all links of the host, because an operator may have renamed
/// the host's end. DEL must not release an address while a link still has it.
///
/// # Errors
/// - The link that has the derived name may be the host's end, but has neither the alias nor the MAC.
/// - The kernel refuses a request.
pub fn find_host_link(host: &Connection, attachment: &Attachment) -> anyhow::Result<Option<Link>> {
    let is_own = |link: &Link| is_host_end(link, attachment);
    let named = host.find_link(&host_link_name(attachment))?;
    if named.as_ref().is_some_and(is_own) {
        return Ok(named);
    }
    let renamed = host.links()?.into_iter().find(is_own);
    if renamed.is_none()
        && let Some(link) = named
    {
        leave_alone(&link, attachment)?;
    }
    Ok(renamed)
}

/// Reports why `link` stays, although it has the name of the attachment's host end.
///
/// # Errors
/// The link may be the host's end: it is a veth to another namespace, and an operator may have
/// changed both its alias and its MAC.
fn leave_alone(link: &Link, attachment: &Attachment) -> anyhow::Result<()> {
    let (name, owner) = (&link.name, attachment.owner());
    let alias = link.alias.as_deref().unwrap_or_default();
    let reason = if link.kind != LinkKind::Veth {
        "is no veth, so no plugin of this suite made it".to_owned()
    } else if Attachment::is_owner(alias) {
        format!("belongs to {alias}, not to {owner}")
    } else if link.peer_namespace.is_none() {
        "has its other end on the host, so it connects no sandbox".to_owned()
    } else {
        bail!(
            "{name} has neither the alias {owner} nor the MAC of that attachment, but its name: \
             delete the link if it is of the attachment, or else rename it"
        );
    };
    note!("{name} {reason}: not deleted");
    Ok(())
}

/// Deletes the veth pair of the interface in the sandbox, if a Go plugin made it: the host's end
/// has no tag, and [`Topology::is_foreign_end`] accepts the host's end.
fn delete_container_link<T: Topology>(
    host: &Connection,
    request: &DelRequest,
) -> anyhow::Result<()> {
    let Some(path) = &request.netns else {
        return Ok(());
    };
    let Some((namespace, sandbox)) = Connection::open_if_present(path)? else {
        return Ok(());
    };
    let Some(container) = sandbox.find_link(request.attachment.interface.as_str())? else {
        return Ok(());
    };
    let peer = host.other_end(&container, &namespace)?;
    let untagged = peer.filter(|peer| !peer.alias.as_deref().is_some_and(Attachment::is_owner));
    if let Some(peer) = untagged
        && T::is_foreign_end(&request.network, host, &peer)?
    {
        return Ok(host.remove_link(&peer)?);
    }
    note!(
        "{} in the sandbox is no end of a veth pair of this network: not deleted",
        container.name
    );
    Ok(())
}

/// Removes the veth pairs, `nf_tables` elements and leases of those attachments of this network
/// that the runtime does not list.
///
/// # Errors
/// At least one step failed; the error names all failures. GC continues after a failed step, with
/// two exceptions. If a veth pair cannot be deleted, GC keeps the elements of the pair's
/// attachment, which protect the host from the container. It also releases no leases at all,
/// because a container's address must not be leased again while the container's pair exists.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
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
    let uses_link = uses_link(&request.network)?;
    let forward = || {
        cni::step("release leases");
        forward(&request.network, Verb::Gc)
    };
    let early = if uses_link { forward() } else { Ok(()) };
    cni::step("delete pairs");
    let links = delete_stale_links(request, may_be_host_end, HOST_MAC, &valid);
    cni::step("remove nf_tables elements");
    let kept = match links {
        Ok(()) => Ok(Vec::new()),
        Err(_) => Connection::open().and_then(|host| host.links()),
    };
    let elements = kept.map_err(anyhow::Error::from);
    let elements = elements.and_then(|it| remove_stale_elements(request, guard::tables(), &it));
    let leases = match links {
        Ok(()) if !uses_link => forward(),
        _ => Ok(()),
    };
    cni::all([early, links, elements, leases])
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
        note!("{} of {whose}: deleted", link.name);
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
        note!("deleted nf_tables elements of {owner}, which the runtime does not list");
    }
    removed
}
