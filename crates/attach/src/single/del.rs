//! DEL and GC: remove links that live in sandboxes, then their leases and records.

use std::path::Path;

use anyhow::ensure;
use cni::delegate::Delegate;
use cni::{Attachment, DelRequest, GcRequest, Verb, note};
use netlink::{Connection, Link};

use super::desired::{SandboxLink, first_name};
use crate::del::{finish, forward};
use crate::lease::uses_link;
use crate::witness::{Presence, Witness};

/// Deletes the link and releases the lease. What is missing counts as removed.
///
/// Without the sandbox, the record of ADD decides: if it does not prove that the link is gone, DEL
/// succeeds and keeps the lease and the record. Without a record, as after an ADD of the Go plugin
/// or after a reboot, the link counts as gone.
///
/// # Errors
/// All errors of the steps. If the link cannot be deleted, lease and record stay.
pub fn del<P: SandboxLink>(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("start the IPAM plugin");
    let lease = Delegate::ipam(&request.network)
        .and_then(|delegate| delegate.map(|it| it.start(Verb::Del)).transpose());
    let owner = request.attachment.owner();
    let witness = Witness::find(&owner)?;
    let may_send = request.netns.as_ref().is_some_and(|it| it.exists());
    let (early, lease) = match uses_link(&request.network) {
        Ok(true) if may_send => {
            cni::step("release the lease");
            (finish(lease), Ok(None))
        }
        _ => (Ok(()), lease),
    };
    cni::step("delete the link");
    if let Some(reason) = remains::<P>(request, witness.as_ref())? {
        note(format_args!(
            "the lease of {owner} stays until GC, because its link may exist: {reason}"
        ));
        return early;
    }
    cni::step("release the lease");
    cni::all([early, finish(lease)])?;
    cni::step("remove the record");
    Witness::remove(&owner)
}

/// Deletes the link in the sandbox of the request. Returns why the link may still exist; `None` if
/// it does not.
fn remains<P: SandboxLink>(
    request: &DelRequest,
    witness: Option<&Witness>,
) -> anyhow::Result<Option<String>> {
    let is_of =
        |sandbox: &Connection, path: &Path| witness.map_or(Ok(true), |it| it.is_of(sandbox, path));
    if let Some(path) = &request.netns
        && let Some((_, sandbox)) = Connection::open_if_present(path)?
        && is_of(&sandbox, path)?
    {
        delete_named(&sandbox, &request.attachment, P::makes_link)?;
        return Ok(None);
    }
    Ok(match witness.map(Witness::presence) {
        None | Some(Presence::Gone) => None,
        Some(Presence::Unknown(reason)) => Some(reason),
        Some(Presence::Present(..)) => Some("its sandbox exists".to_owned()),
    })
}

/// Deletes the link that the attachment names, or the one that ADD has not renamed yet, if it is one
/// that `is_made` accepts. Returns whether none of both is left that it accepts.
pub(super) fn delete_named(
    sandbox: &Connection,
    attachment: &Attachment,
    is_made: impl Fn(&Link) -> bool,
) -> anyhow::Result<()> {
    for name in [attachment.interface.as_str(), &first_name(attachment)] {
        match sandbox.find_link(name)? {
            Some(link) if is_made(&link) => sandbox.remove_link(&link)?,
            Some(link) => note(format_args!(
                "{name} in the sandbox is {}, so another plugin made it: not deleted",
                link.kind
            )),
            None => {}
        }
    }
    Ok(())
}

/// Removes the links, leases and records of those attachments of this network that the runtime does
/// not list.
///
/// # Errors
/// At least one step failed. GC releases no lease if the link of an attachment may still exist.
pub fn gc<P: SandboxLink>(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    let all = Witness::all()?.into_iter();
    let stale: Vec<_> = all.filter(|(owner, _)| is_stale(owner)).collect();
    let uses_link = uses_link(&request.network)?;
    let release = || {
        cni::step("release leases");
        forward(&request.network, Verb::Gc)
    };
    let early = if uses_link { release() } else { Ok(()) };
    cni::step("delete links");
    let deleted = stale.iter().map(|(owner, witness)| match witness {
        Ok(Some(witness)) => delete_stale::<P>(owner, witness),
        Ok(None) => Ok(()),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    });
    cni::all(deleted.chain([early]))?;
    if !uses_link {
        release()?;
    }
    cni::step("remove records");
    cni::all(stale.iter().map(|(owner, _)| {
        Witness::remove(owner)?;
        note(format_args!(
            "removed {owner}, which the runtime does not list"
        ));
        Ok(())
    }))
}

fn delete_stale<P: SandboxLink>(owner: &str, witness: &Witness) -> anyhow::Result<()> {
    let (sandbox, attachment) = match (witness.presence(), Attachment::of_owner(owner)) {
        (Presence::Gone, _) => return Ok(()),
        (Presence::Present(_, sandbox), Some(attachment)) => (sandbox, attachment),
        (Presence::Unknown(reason), _) => {
            anyhow::bail!("the link of {owner} may exist: {reason}")
        }
        (Presence::Present(..), None) => anyhow::bail!("{owner} is no tag of an attachment"),
    };
    let is_tagged = |it: &Link| it.alias.as_deref() == Some(owner);
    let is_own =
        |it: &Link| P::makes_link(it) && (is_tagged(it) || it.name == first_name(&attachment));
    delete_named(&sandbox, &attachment, is_own)?;
    let left = sandbox.find_link(attachment.interface.as_str())?;
    let is_left = left.is_some_and(|it| P::makes_link(&it));
    ensure!(
        !is_left,
        "{owner}: the link in the sandbox has another alias, so it stays"
    );
    Ok(())
}
