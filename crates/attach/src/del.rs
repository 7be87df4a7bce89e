//! DEL: deletes the veth pair and its `nf_tables` elements, then releases the lease. Missing
//! objects are no error.

use cni::delegate::{Delegate, Started};
use cni::{Attachment, DelRequest, Network, Verb, note};
use netlink::{Connection, Link, LinkKind};

use crate::desired::Topology;
use crate::guard::{self, Removal};
use crate::names;

/// Deletes the veth pair, removes its `nf_tables` elements and releases the lease. A missing object
/// counts as removed. Also deletes a veth pair that a Go plugin made. Such a pair has no alias, so
/// DEL recognises it by [`Topology::is_foreign_end`].
///
/// RELOAD, a verb of this suite, restores `nf_tables` elements. DEL needs no lock against a
/// concurrent RELOAD of the attachment, because DEL deletes the pair before it removes elements. If
/// RELOAD adds elements before DEL looks for them, DEL removes them. If RELOAD adds elements later,
/// RELOAD finds that the pair is gone and removes them itself.
///
/// # Errors
/// All errors of the steps. If the pair cannot be deleted, the elements and the lease stay, because
/// the container's address must not be leased again while the pair exists.
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

/// Finds the host's end of the veth pair by the name that [`names::host_link_name`] derives from
/// the attachment. Returns `None` if no link has this name, if the link is no veth, or if its alias
/// names another attachment. Also returns a link without an alias, because an ADD that was killed
/// may have left it.
pub(crate) fn find_host_link(
    host: &Connection,
    attachment: &Attachment,
) -> anyhow::Result<Option<Link>> {
    let name = names::host_link_name(attachment);
    let owner = attachment.owner();
    let found = host.find_link(&name)?;
    Ok(found.filter(|link| match &link.alias {
        _ if link.kind != LinkKind::Veth => {
            note(format_args!(
                "{name} is no veth, so no plugin of this suite made it: left alone"
            ));
            false
        }
        Some(alias) if *alias != owner => {
            note(format_args!(
                "{name} belongs to {alias}, not to {owner}: left alone"
            ));
            false
        }
        _ => true,
    }))
}

/// Deletes the veth pair of the interface in the sandbox, if a Go plugin made it: the host's end
/// has no alias of another attachment, and [`Topology::is_foreign_end`] accepts the host's end.
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
    let owner = request.attachment.owner();
    let peer = host.other_end(&container, &namespace)?;
    let untagged = peer.filter(|peer| peer.alias.as_ref().is_none_or(|alias| *alias == owner));
    if let Some(peer) = untagged
        && T::is_foreign_end(&request.network, host, &peer)?
    {
        return Ok(host.remove_link(&peer)?);
    }
    note(format_args!(
        "{} in the sandbox is no end of a pair of this network: left alone",
        container.name
    ));
    Ok(())
}
