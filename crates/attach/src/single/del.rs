//! DEL and GC: remove links that live in sandboxes, then their leases and records.

use std::path::Path;

use anyhow::{Context as _, bail};
use cni::{Attachment, DelRequest, GcRequest, Verb, note, note_failure};
use netlink::{Connection, Link, LinkKind};

use super::desired::{SandboxLink, first_name};
use super::stale::remove_stale;
use crate::del::{finish, start};
use crate::lease::uses_link;
use crate::witness::{Presence, Witness};

/// Deletes the link and releases the lease. What is missing counts as removed.
///
/// Without the sandbox, the record of ADD decides. If no process is seen in the recorded namespace, DEL
/// deletes the link there. If the record does not prove that the link is gone, DEL succeeds and keeps the
/// lease and the record. Without a record, as after an ADD of the Go plugin or after a reboot, the link
/// counts as gone.
///
/// # Errors
/// All errors of the steps. If the link cannot be deleted, lease and record stay.
pub fn del<P: SandboxLink>(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("start the IPAM plugin");
    let lease = start(&request.network, Verb::Del);
    let owner = request.attachment.owner();
    let witness = Witness::find(&owner);
    let sandbox = sandbox_of(request, witness.as_ref().ok().and_then(Option::as_ref))?;
    if sandbox.is_none()
        && let Some(reason) = remains(request, witness)?
    {
        note!("the lease of {owner} stays, because its link may exist: {reason}");
        return Ok(());
    }
    let is_early = sandbox.is_some() && uses_link(&request.network).unwrap_or_default();
    let mut lease = Some(lease);
    let mut release = || {
        cni::step("release the lease");
        lease.take().map_or(Ok(()), finish)
    };
    let early = if is_early { release() } else { Ok(()) };
    cni::step("delete the link");
    if let Some((sandbox, path)) = sandbox.as_ref().zip(request.netns.as_deref()) {
        delete_own::<P>(&request.attachment, (sandbox, path))?;
    }
    early?;
    if !is_early {
        release()?;
    }
    cni::step("remove the record");
    Witness::remove(&owner)
}

/// Returns a connection to the sandbox of the request; `None` if its path leads to no sandbox, or not
/// to the recorded one.
fn sandbox_of(
    request: &DelRequest,
    witness: Option<&Witness>,
) -> anyhow::Result<Option<Connection>> {
    let Some(path) = &request.netns else {
        return Ok(None);
    };
    let Some((_, sandbox)) = Connection::open_if_present(path)? else {
        return Ok(None);
    };
    let is_own = witness.map_or(Ok(true), |it| it.is_of(&sandbox, path))?;
    Ok(Some(sandbox).filter(|_| is_own))
}

/// Deletes the link if the request leads to no sandbox, and if no process is seen in that of the record.
/// Returns why the link may still exist; `None` if it does not.
fn remains(
    request: &DelRequest,
    witness: anyhow::Result<Option<Witness>>,
) -> anyhow::Result<Option<String>> {
    let witness = match witness {
        Ok(Some(witness)) => witness,
        Ok(None) => return Ok(None),
        Err(error) => return Ok(Some(format!("{error:#}"))),
    };
    let leads_elsewhere = request.netns.as_ref().is_some_and(|it| it.exists());
    let owner = request.attachment.owner();
    if !leads_elsewhere && delete_deserted(&owner, &witness)? {
        return Ok(None);
    }
    Ok(witness.presence_at_removal(None).reason())
}

/// Deletes the link if this process sees no process in its sandbox. Returns whether there was one.
fn delete_deserted(owner: &str, witness: &Witness) -> anyhow::Result<bool> {
    let Presence::Deserted(number) = witness.presence() else {
        return Ok(false);
    };
    let is_own = |it: &Link| it.alias.as_deref() == Some(owner) && is_single(&it.kind);
    let deleted = Witness::delete_links(number, is_own)?;
    if deleted {
        // The next DEL would find no link there, which proves nothing.
        Witness::retire(owner);
    }
    Ok(deleted)
}

/// Deletes the link that the attachment names, and the one that ADD has not renamed yet, as far as
/// `is_made` accepts them. Returns whether one of them had the attachment's tag.
fn delete_named(
    sandbox: &Connection,
    attachment: &Attachment,
    is_made: impl Fn(&Link) -> bool,
) -> anyhow::Result<bool> {
    let owner = attachment.owner();
    let mut had_tag = false;
    for name in [attachment.interface.as_str(), &first_name(attachment)] {
        match sandbox.find_link(name)? {
            Some(link) if is_made(&link) => {
                sandbox.remove_link(&link)?;
                had_tag |= link.alias.as_ref() == Some(&owner);
            }
            Some(link) => note!(
                "{name} in the sandbox, {}, is not of this attachment: not deleted",
                link.kind
            ),
            None => {}
        }
    }
    Ok(had_tag)
}

/// Deletes the links in the sandbox that have the tag `owner`, which a process may have renamed.
fn delete_tagged(sandbox: &Path, owner: &str) -> anyhow::Result<()> {
    let Some((namespace, _)) = Connection::open_if_present(sandbox)? else {
        return Ok(());
    };
    let inside = namespace.run(Connection::open_wary)??;
    let mut links = inside.links()?;
    links.retain(|it| it.alias.as_deref() == Some(owner) && is_single(&it.kind));
    for link in links {
        inside.remove_link(&link)?;
    }
    Ok(())
}

/// Removes the links, leases and records of those attachments of this network that the runtime does
/// not list.
///
/// # Errors
/// As [`remove_stale`]. A link may exist as long as the record does not prove the contrary.
pub fn gc<P: SandboxLink>(request: &GcRequest) -> anyhow::Result<()> {
    let owners = Witness::all()?.into_keys();
    remove_stale(request, "delete links", owners, |owner| {
        let Some(witness) = Witness::find(owner)? else {
            return Ok(());
        };
        if let Presence::Present(namespace, sandbox) = witness.presence() {
            return delete_stale::<P>(owner, (&sandbox, namespace.path()));
        }
        if delete_deserted(owner, &witness)? {
            return Ok(());
        }
        match witness.presence_at_removal(None).reason() {
            None => Ok(()),
            Some(reason) => bail!("the link of {owner} may exist: {reason}"),
        }
    })
}

/// Deletes the link of an attachment whose record proves the sandbox.
fn delete_stale<P: SandboxLink>(owner: &str, sandbox: (&Connection, &Path)) -> anyhow::Result<()> {
    let attachment = Attachment::of_owner(owner);
    let attachment = attachment.with_context(|| format!("{owner} is no tag of an attachment"))?;
    delete_own::<P>(&attachment, sandbox)
}

/// Deletes the link of the attachment. It may have no alias, after a killed ADD, or another alias or name,
/// which a process in the sandbox set. If it has the tag of another attachment that is in this sandbox and
/// has no other link there, it is that one's.
fn delete_own<P: SandboxLink>(
    attachment: &Attachment,
    sandbox: (&Connection, &Path),
) -> anyhow::Result<()> {
    let owner = attachment.owner();
    let is_own = |it: &Link| {
        let is_tagged = it.alias.as_ref() == Some(&owner) && is_single(&it.kind);
        is_tagged || P::makes_link(it) && !is_of_other(it, &owner, sandbox)
    };
    if !delete_named(sandbox.0, attachment, is_own)? {
        // A sandbox with too many links to list cannot hinder its removal.
        note_failure(delete_tagged(sandbox.1, &owner));
    }
    Ok(())
}

/// Returns whether the link is that of another attachment, whose record names this sandbox.
fn is_of_other(link: &Link, owner: &str, (sandbox, path): (&Connection, &Path)) -> bool {
    let other = link.alias.as_deref().filter(|it| *it != owner);
    // A process in the sandbox can set any alias, but writes no records.
    let witness = other.and_then(|it| Witness::find(it).ok().flatten());
    let Some(witness) = witness.filter(|it| it.is_of(sandbox, path).unwrap_or(true)) else {
        return false;
    };
    let named = Attachment::of_owner(&witness.owner);
    let named = named.map(|it| sandbox.find_link(it.interface.as_str()));
    !matches!(named, Some(Ok(Some(it))) if it.index != link.index && it.alias == link.alias)
}

/// Returns whether a plugin of this module makes links of this kind. The network may have had another
/// plugin at ADD.
fn is_single(kind: &LinkKind) -> bool {
    use LinkKind::{Dummy, Ipvlan, Macvlan, Tap, Vlan};
    matches!(kind, Dummy | Ipvlan(_) | Macvlan(_) | Tap(_) | Vlan(_))
}
