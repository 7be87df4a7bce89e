//! Garbage collection: removes resources of attachments that are proven to be stale, and nothing
//! else. A caller calls [`read_node`], then [`judge`] for a network, then [`remove`] for each stale
//! attachment.
//!
//! GC of the CNI specification removes all attachments that the runtime does not list. So an ADD
//! that begins after the runtime made its list loses its address. DEL removes only the attachment
//! that it names. So this module calls DEL instead of GC, and may run while pods start.

use std::fs;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use cni::{Attachment, note};
use host_local::{EarlierBoot, Holder, Storage, Store};
use netlink::Connection;
use node::{HostLinks, Lease, Node, Part, Witnessed, lease_directories};
use runtime::{Chain, Conflist, Directories, Entry, may_exist};

use crate::leftover::Leftover;
use crate::liveness::{Candidate, Liveness, liveness};

/// What [`remove`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// DEL succeeded.
    Removed,
    /// DEL was not called: the attachment changed since the node was read, so it may be live.
    Kept,
}

/// Reads the attachments of the node. If only `nf_tables` cannot be read, returns the node with the
/// reason in [`Node::unread`]. Then the node lacks attachments of which only elements remain, but
/// no live attachment looks stale.
///
/// # Errors
/// A part of the node other than `nf_tables` cannot be read.
pub fn read_node(directories: &Directories) -> anyhow::Result<Node> {
    let node = Node::attachments(directories);
    for (part, reason) in &node.unread {
        ensure!(*part == Part::Firewall, "nothing was removed: {reason}");
    }
    Ok(node)
}

/// Returns all attachments of `network` with their states, sorted by name. Only an attachment with
/// [`Liveness::Gone`] is proven to be stale.
pub fn judge<'n>(node: &'n Node, network: &Conflist) -> Vec<(Liveness, Candidate<'n>)> {
    let candidates = Candidate::of_network(node, network).into_iter();
    candidates.map(|it| (liveness(node, &it), it)).collect()
}

/// Calls DEL for the attachment, with the configuration of its ADD if that is in a runtime's cache.
/// Does not call DEL if a lease, the cached result or the record of the sandbox changed after
/// [`read_node`], or if a sandbox or a link of the attachment exists now. If a lease remains after
/// DEL, and there is still no link, makes `host-local` read all lease files and calls DEL again.
///
/// # Errors
/// A plugin fails, a lease remains, or the links of the host cannot be read.
pub fn remove(chain: &Chain<'_>, candidate: &Candidate<'_>) -> anyhow::Result<Removal> {
    remove_if(chain, candidate, || has_no_link(candidate))
}

/// Calls DEL for an attachment as [`remove`] does, although it has links: if they are still those
/// of `leftover`, and there is still no process in their namespaces. `sockets` are those of the
/// runtimes, as for [`Node::read_processes`].
///
/// # Errors
/// Those of [`remove`], and the attachments of the node cannot be read.
pub fn remove_leftover(
    chain: &Chain<'_>,
    candidate: &Candidate<'_>,
    (leftover, sockets): (&Leftover, &[PathBuf]),
) -> anyhow::Result<Removal> {
    remove_if(chain, candidate, || {
        let mut node = read_node(chain.directories)?;
        node.read_processes(sockets);
        let now = Leftover::of(&node, candidate);
        Ok(leftover.is_idle && now.as_ref() == Some(leftover))
    })
}

fn remove_if(
    chain: &Chain<'_>,
    candidate: &Candidate<'_>,
    is_unused: impl FnOnce() -> anyhow::Result<bool>,
) -> anyhow::Result<Removal> {
    let attachment = &candidate.attachment;
    let is_unchanged = has_leases(chain.network, candidate)?
        && has_entry(chain, candidate)
        && has_record(candidate);
    if !(is_unchanged && is_unused()?) {
        note!("{attachment} changed after the node was read: not removed");
        return Ok(Removal::Kept);
    }
    note!("DEL {attachment}");
    let unknown = Entry::default();
    let entry = candidate.cached.map_or(&unknown, |it| &it.entry);
    let sandbox = entry.sandbox(attachment);
    let delete = || {
        let deleted = chain.del_as_added(&sandbox);
        deleted.map_err(|error| anyhow!("{attachment}: {error:#}"))
    };
    delete()?;
    if let Some(lease) = remaining(candidate)
        && has_no_link(candidate)?
    {
        let record = Witnessed::of(&attachment.owner());
        ensure!(
            record.is_none_or(|it| it == Witnessed::Gone),
            "{attachment}: its lease {} stays, because its link may exist",
            lease.path.display()
        );
        note!("DEL {attachment} left {}", lease.path.display());
        distrust_index(lease).with_context(|| format!("{attachment}: its lease remains"))?;
        delete()?;
        ensure!(remaining(candidate).is_none(), lasts(attachment, lease));
    }
    Ok(Removal::Removed)
}

/// Returns whether all leases are unchanged since the node was read, and there are no further ones.
/// A change means that the container may be attached again, because podman reuses the container ID at
/// each start. A DEL for the old attachment would then remove the new one.
///
/// # Errors
/// The leases cannot be read.
fn has_leases(network: &Conflist, candidate: &Candidate<'_>) -> anyhow::Result<bool> {
    let holder = Holder::of(&candidate.attachment);
    let is_known = |address| candidate.leases.iter().any(|it| it.address == address);
    for directory in lease_directories(network) {
        let leases = Store::existing_leases_of(&storage(directory), &candidate.attachment)?;
        let mut own = leases.iter().filter(|it| it.holder == holder);
        if !own.all(|it| is_known(it.address)) {
            return Ok(false);
        }
    }
    Ok(candidate.leases.iter().all(|it| is_unchanged(it)))
}

/// Returns whether the record of the sandbox says the same as when the node was read. ADD of a link
/// that lives in the sandbox alone writes the record before all else.
fn has_record(candidate: &Candidate<'_>) -> bool {
    let now = Witnessed::of(&candidate.attachment.owner());
    let state = |it: Option<&Witnessed>| it.filter(|it| **it != Witnessed::Gone).map(discriminant);
    state(now.as_ref()) == state(candidate.witness)
}

/// Returns a lease that still exists and has not changed since the node was read; `None` if there
/// is no such lease.
fn remaining<'n>(candidate: &Candidate<'n>) -> Option<&'n Lease> {
    let mut leases = candidate.leases.iter().copied();
    leases.find(|it| it.path.exists() && is_unchanged(it))
}

fn is_unchanged(lease: &Lease) -> bool {
    let written = fs::symlink_metadata(&lease.path).and_then(|it| it.modified());
    written.ok() == lease.since
}

/// Returns whether the cached result is unchanged since the node was read, and its sandbox does not
/// exist.
fn has_entry(chain: &Chain<'_>, candidate: &Candidate<'_>) -> bool {
    let (cache, attachment) = (&chain.directories.cache, &candidate.attachment);
    match candidate.cached {
        Some(cached) => {
            !may_exist(cached.entry.netns()) && cache.written(attachment) == cached.since
        }
        // An entry that a crash has torn stays until DEL.
        None => !matches!(cache.read(attachment), Ok(Some(_))),
    }
}

/// Returns whether no veth pair connects the host with the container in the attachment's network
/// ([`Candidate::links_in`]).
fn has_no_link(candidate: &Candidate<'_>) -> anyhow::Result<bool> {
    let links = HostLinks::read(&Connection::open()?.links()?);
    Ok(candidate.links_in(&links).next().is_none())
}

/// Makes `host-local` read all lease files of the lease's network at its next call, instead of its
/// index of leases. The index can lack a lease that another program wrote without the lock.
fn distrust_index(lease: &Lease) -> anyhow::Result<()> {
    let data_dir = lease.path.parent().and_then(Path::parent);
    let data_dir = data_dir.context("it is in no directory")?.to_owned();
    Store::distrust_index(&storage(data_dir), &lease.network.parse()?)
}

fn storage(data_dir: PathBuf) -> Storage {
    Storage {
        data_dir,
        lock_timeout: LONGEST_LOCK,
        reuse_delay: Duration::ZERO,
        earlier_boot: EarlierBoot::Keep,
    }
}

fn lasts(attachment: &Attachment, lease: &Lease) -> String {
    let path = lease.path.display();
    format!("{attachment}: DEL succeeded, but the lease {path} remains: remove the file")
}

/// Longest wait for the lock on leases: the default of `host-local`.
const LONGEST_LOCK: Duration = Duration::from_secs(30);
