//! DEL: deletes the veth pair and its `nf_tables` elements, then releases the lease. Missing
//! objects are no error.

use anyhow::bail;
use cni::delegate::{Delegate, Started};
use cni::{Attachment, DelRequest, Network, Verb, note};
use netlink::{Connection, Link, LinkKind};

use crate::desired::Topology;
use crate::guard::{self, Removal};
use crate::names;

/// Deletes the veth pair, removes its `nf_tables` elements and releases the lease. A missing object
/// counts as removed. Also deletes a veth pair that a Go plugin made. Such a pair has no tag, so
/// DEL recognises it by [`Topology::is_foreign_end`].
///
/// RELOAD, a verb of this suite, restores `nf_tables` elements. DEL needs no lock against a
/// concurrent RELOAD of the attachment, because DEL deletes the pair before it removes elements. If
/// RELOAD adds elements before DEL looks for them, DEL removes them. If RELOAD adds elements later,
/// RELOAD finds that the pair is gone and removes them itself.
///
/// # Errors
/// All errors of the steps. If the pair cannot be deleted, or a link may be its host end, the
/// elements and the lease stay, because the container's address must not be leased again while the
/// pair exists.
pub fn del<T: Topology>(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("start the IPAM plugin");
    // The executable of the IPAM plugin starts now, while DEL deletes the veth pair. DEL sends it
    // the request only after the deletion, so the plugin does not release the lease of an existing
    // pair.
    let lease = Delegate::ipam(&request.network)
        .and_then(|delegate| delegate.map(|it| it.start(Verb::Del)).transpose());
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
    let lease = lease.and_then(|it| it.map_or(Ok(()), Started::finish));
    cni::all([protection, lease.map_err(anyhow::Error::from)])
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
    if let Some(delegate) = Delegate::ipam(network)? {
        delegate.start(verb)?.finish()?;
    }
    Ok(())
}

/// Finds the host's end of the veth pair, which [`names::is_host_end`] recognises. Returns `None`
/// if it does not exist.
///
/// The host's end usually has the name that [`names::host_link_name`] derives from the attachment.
/// If it does not, the function lists all links of the host, because an operator may have renamed
/// the host's end. DEL must not release an address while a link still has it.
///
/// # Errors
/// - The link that has the derived name may be the host's end, but has neither the alias nor the MAC.
/// - The kernel refuses a request.
pub fn find_host_link(host: &Connection, attachment: &Attachment) -> anyhow::Result<Option<Link>> {
    let is_own = |link: &Link| names::is_host_end(link, attachment);
    let named = host.find_link(&names::host_link_name(attachment))?;
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
    note(format_args!("{name} {reason}: not deleted"));
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
    note(format_args!(
        "{} in the sandbox is no end of a veth pair of this network: not deleted",
        container.name
    ));
    Ok(())
}
