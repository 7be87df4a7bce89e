//! Garbage collection: removes resources of attachments that are proven to be stale, and nothing
//! else. A caller reads the node, judges a network, and removes what it found stale.
//!
//! The specification's GC removes everything that its list does not contain. So an ADD that begins
//! after the list was written loses its address. DEL removes only the attachment that it names. So
//! this module calls DEL instead of GC, and may run while pods start.

use std::fs;

use anyhow::{anyhow, ensure};
use cni::note;
use netlink::Connection;
use node::{HostLinks, Lease, Node, Part};
use runtime::{Chain, Conflist, Directories, Entry, may_exist};

use crate::life::{Life, Remains, life};

/// What [`remove`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// DEL succeeded.
    Removed,
    /// The attachment changed since the node was read, so it may be live: it was kept.
    Kept,
}

/// Reads the attachments of the node. If only the firewall cannot be read, the node is returned
/// with the reason in [`Node::unread`]: stale attachments may be missing then, but a live
/// attachment is never taken for a stale one.
///
/// # Errors
/// A part of the node other than the firewall cannot be read.
pub fn read_node(directories: &Directories) -> anyhow::Result<Node> {
    let node = Node::attachments(directories);
    for (part, reason) in &node.unread {
        ensure!(*part == Part::Firewall, "nothing was removed: {reason}");
    }
    Ok(node)
}

/// Returns all attachments of `network` with their states, sorted by name. Only an attachment with
/// [`Life::Gone`] is proven to be stale.
pub fn judge<'n>(node: &'n Node, network: &Conflist) -> Vec<(Remains<'n>, Life)> {
    let remains = Remains::of_network(node, network).into_iter();
    let judged = remains.map(|remains| {
        let life = life(node, &remains);
        (remains, life)
    });
    judged.collect()
}

/// Calls DEL for the attachment, with the configuration of its ADD if a runtime cached that
/// configuration. Keeps an attachment that changed since the node was read.
///
/// # Errors
/// A plugin fails, or the links of the host cannot be read.
pub fn remove(chain: &Chain<'_>, remains: &Remains<'_>) -> anyhow::Result<Removal> {
    let attachment = &remains.attachment;
    if !is_unchanged(chain, remains)? {
        note(format_args!("{attachment} changes at this moment: kept"));
        return Ok(Removal::Kept);
    }
    note(format_args!("DEL {attachment}"));
    let unknown = Entry::default();
    let entry = remains.cached.map_or(&unknown, |it| &it.entry);
    let deleted = chain.del_as_added(&entry.sandbox(attachment));
    deleted.map_err(|error| anyhow!("{attachment}: {error:#}"))?;
    Ok(Removal::Removed)
}

/// Returns whether the container was not attached again since the node was read. podman reuses the
/// container ID at each start, so a DEL for the old attachment would remove the new one.
fn is_unchanged(chain: &Chain<'_>, remains: &Remains<'_>) -> anyhow::Result<bool> {
    let written = |it: &Lease| fs::symlink_metadata(&it.path)?.modified();
    let has_leases = remains.leases.iter().all(|it| written(it).ok() == it.since);
    let has_entry = remains.cached.is_none_or(|cached| {
        let written = chain.directories.cache.written(&remains.attachment);
        !may_exist(cached.entry.netns()) && written == cached.since
    });
    let host = Connection::open()?;
    let links = HostLinks::read(&host, &host.links()?);
    Ok(has_leases && has_entry && remains.has_tagged(&links).is_none())
}
