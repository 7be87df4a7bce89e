//! `gc`: removes resources of attachments that are proven to be stale, and nothing else.
//!
//! The specification's GC removes everything that its list does not contain, so an ADD that begins
//! after the list was written loses its address. A DEL names the one attachment that it removes. So
//! `gc` calls DEL, and may run while pods start.

use std::fs;

use anyhow::{anyhow, bail, ensure};
use cni::{Attachment, AttachmentId, all, note};
use netlink::Connection;
use node::{HostLinks, Lease, Node, Part};
use runtime::{Arguments, Chain, Directories, Sandbox, may_exist};

use crate::life::{Life, Remains, life};

/// Which attachments of a network `gc` considers stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// Those that are proven to be stale.
    Proven,
    /// Those, and of the attachments without a proof, those that are not listed.
    Unlisted(Vec<AttachmentId>),
    /// All: the plugins get the specification's GC with an empty list.
    All,
}

/// Removes resources of stale attachments of the chain's network.
///
/// # Errors
/// The node cannot be read. Nothing shows whether attachments are live; nothing is removed then.
/// All errors of plugins, after each attachment was tried.
pub fn gc(directories: &Directories, chain: &Chain<'_>, gone: &Gone) -> anyhow::Result<()> {
    if chain.network.disable_gc {
        note("nothing is collected: disableGC is set");
        return Ok(());
    }
    if *gone == Gone::All {
        return chain.remove_all();
    }
    let node = Node::attachments(directories);
    for (part, reason) in &node.unread {
        // Without the firewall `gc` finds fewer attachments, but none that is live.
        ensure!(*part == Part::Firewall, "nothing was removed: {reason}");
        note(format_args!("{reason}; going on without it"));
    }
    let mut stale = Vec::new();
    let mut unseen = Vec::new();
    for remains in Remains::of_network(&node, chain.network) {
        let attachment = &remains.attachment;
        match (life(&node, &remains), gone) {
            (_, Gone::Unlisted(listed)) if listed.contains(&attachment.id()) => {}
            (Life::Lives, Gone::Unlisted(_)) => {
                note(format_args!(
                    "{attachment} is not listed, but is live: kept"
                ));
            }
            (Life::Lives, _) => {}
            (Life::Young, _) => note(format_args!(
                "{attachment} was leased its address less than five minutes ago, and its ADD may \
                 still be running: kept"
            )),
            (Life::Unseen(reason), Gone::Proven) => unseen.push((attachment.clone(), reason)),
            (Life::Unseen(_) | Life::Gone, _) => stale.push(remains),
        }
    }
    refuse(chain, &unseen)?;
    all(stale.iter().map(|it| remove(chain, it)))
}

/// # Errors
/// Nothing shows whether some attachments are live.
fn refuse(chain: &Chain<'_>, unseen: &[(Attachment, String)]) -> anyhow::Result<()> {
    let Some((_, reason)) = unseen.first() else {
        return Ok(());
    };
    let name = &chain.network.name;
    for (attachment, _) in unseen {
        note(format_args!("{attachment} may be live: kept"));
    }
    bail!(
        "nothing was removed, because gc may not see all live attachments: {reason}. List the live \
         ones with --valid, or, if no pod of network {name} runs on this node: cnitool gc {name} --all"
    )
}

/// Calls DEL, with the configuration of the ADD if a runtime cached it.
fn remove(chain: &Chain<'_>, remains: &Remains<'_>) -> anyhow::Result<()> {
    let attachment = &remains.attachment;
    if !is_unchanged(chain, remains)? {
        note(format_args!("{attachment} changes at this moment: kept"));
        return Ok(());
    }
    note(format_args!("DEL {attachment}"));
    let sandbox = match remains.cached {
        Some(cached) => cached.entry.sandbox(attachment),
        None => Sandbox {
            attachment: attachment.clone(),
            netns: "".into(),
            arguments: Arguments::default(),
        },
    };
    let deleted = chain.del_as_added(&sandbox);
    deleted.map_err(|error| anyhow!("{attachment}: {error:#}"))
}

/// Returns whether no runtime attached the container again since the node was read. podman reuses
/// the ID at each start.
fn is_unchanged(chain: &Chain<'_>, remains: &Remains<'_>) -> anyhow::Result<bool> {
    let written = |it: &&Lease| {
        fs::symlink_metadata(&it.path)
            .and_then(|it| it.modified())
            .ok()
    };
    let has_leases = remains.leases.iter().all(|it| written(it) == it.since);
    let has_entry = remains.cached.is_none_or(|cached| {
        !may_exist(cached.entry.netns()) && chain.cache.written(&remains.attachment) == cached.since
    });
    let host = Connection::open()?;
    let links = HostLinks::read(&host, &host.links()?);
    Ok(has_leases && has_entry && remains.has_tagged(&links).is_none())
}
