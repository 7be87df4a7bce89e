//! DEL: removes the pair, its `nf_tables` elements, then the lease, as far as they exist.

use cni::delegate::{Delegate, Started};
use cni::{Attachment, DelRequest, Network, Verb, note};
use netlink::{Connection, Link};

use crate::guard::{self, Removal};
use crate::names;

/// Removes the pair and its `nf_tables` elements, and releases the lease. Absent objects count as
/// removed.
///
/// The reference tags no link. `is_foreign_end` decides whether an untagged link of the host is the
/// end of a pair that the reference made for this network.
///
/// The order makes a lock against a RELOAD of the attachment unnecessary. DEL removes elements that
/// RELOAD adds before DEL's last look. After it, RELOAD finds no port and removes its elements
/// itself.
///
/// # Errors
/// All errors. The elements and the lease stay as long as the port: its address must not be leased
/// again.
pub fn del(
    request: &DelRequest,
    is_foreign_end: impl Fn(&Connection, &Link) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    cni::step("start the IPAM plugin");
    // The IPAM plugin starts while the links are deleted, and releases nothing before that.
    let lease = Delegate::ipam(&request.network)
        .and_then(|delegate| delegate.map(|it| it.start(Verb::Del)).transpose());
    let host = Connection::open()?;
    let attachment = &request.attachment;
    cni::step("delete the pair");
    match find_host_link(&host, attachment)? {
        Some(link) => host.remove_link(&link)?,
        None => delete_container_link(&host, request, is_foreign_end)?,
    }
    cni::step("remove nf_tables elements");
    let protection = remove_protection(attachment);
    cni::step("release the lease");
    let lease = lease.and_then(|it| it.map_or(Ok(()), Started::finish));
    cni::all([protection, lease.map_err(anyhow::Error::from)])
}

/// Removes the attachment's elements from `nf_tables`.
pub(crate) fn remove_protection(attachment: &Attachment) -> anyhow::Result<()> {
    let owner = attachment.owner();
    let mut removal = Removal::start(guard::tables())?;
    removal.remove(|it| it == owner)?;
    removal.finish();
    Ok(())
}

/// Calls the IPAM plugin, if there is one, with `verb`.
///
/// # Errors
/// The plugin cannot be run, or reports an error.
pub fn forward(network: &Network, verb: Verb) -> anyhow::Result<()> {
    if let Some(delegate) = Delegate::ipam(network)? {
        delegate.call(verb)?;
    }
    Ok(())
}

/// Finds the host's end by the name that the attachment determines.
///
/// A link of that name without an alias is the pair of an ADD that was killed.
pub(crate) fn find_host_link(
    host: &Connection,
    attachment: &Attachment,
) -> anyhow::Result<Option<Link>> {
    let name = names::host_link_name(attachment);
    let owner = attachment.owner();
    let found = host.find_link(&name)?;
    Ok(found.filter(|link| match &link.alias {
        Some(alias) if *alias != owner => {
            note(format_args!(
                "{name} belongs to {alias}, not to {owner}: left alone"
            ));
            false
        }
        _ => true,
    }))
}

/// Deletes the container's end of a pair without our tag, as the reference makes it: a veth whose
/// peer `is_foreign_end` accepts.
fn delete_container_link(
    host: &Connection,
    request: &DelRequest,
    is_foreign_end: impl Fn(&Connection, &Link) -> anyhow::Result<bool>,
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
        && is_foreign_end(host, &peer)?
    {
        return Ok(host.remove_link(&peer)?);
    }
    note(format_args!(
        "{} in the sandbox is no end of a pair of this network: left alone",
        container.name
    ));
    Ok(())
}
