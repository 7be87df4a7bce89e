//! `gc`: removes resources of attachments that are proven to be stale, and nothing else.
//!
//! The specification's GC removes everything that its list does not contain. So an ADD that begins
//! after the list was written loses its address. DEL removes only the attachment that it names. So
//! `gc` calls DEL instead of GC, and may run while pods start.

use std::fs;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use cni::{ContainerId, InterfaceName, all, note};
use netlink::Connection;
use node::{HostLinks, Lease, Node, Part};
use runtime::{Chain, Entry, may_exist};

use crate::life::{Life, Remains, life};

/// Arguments of `gc`: which attachments it removes. Without arguments, `gc` removes those that are
/// proven to be stale.
#[derive(Debug, Args)]
pub struct Collect {
    /// Keep this attachment (repeatable); of the others, keep only those that are proven to be live
    #[arg(long, value_name = "CONTAINERID/IFNAME", value_parser = names)]
    pub valid: Vec<(ContainerId, InterfaceName)>,
    /// Remove all attachments, even live ones
    #[arg(long, conflicts_with = "valid")]
    pub all: bool,
}

fn names(text: &str) -> anyhow::Result<(ContainerId, InterfaceName)> {
    let parts = text.split_once('/');
    let (container, interface) = parts.context("it is not of the form CONTAINERID/IFNAME")?;
    Ok((container.parse()?, interface.parse()?))
}

/// Reads the attachments of the node. If only the firewall cannot be read, `gc` goes on: it may
/// miss stale attachments, but it never takes a live attachment for a stale one.
///
/// # Errors
/// A part of the node other than the firewall cannot be read.
fn read_node(chain: &Chain<'_>) -> anyhow::Result<Node> {
    let node = Node::attachments(chain.directories);
    for (part, reason) in &node.unread {
        ensure!(*part == Part::Firewall, "nothing was removed: {reason}");
        note(format_args!("{reason}; going on without it"));
    }
    Ok(node)
}

/// Removes resources of stale attachments of the chain's network.
///
/// # Errors
/// The node cannot be read, or nothing shows whether attachments are live. In both cases, `gc`
/// removes nothing. A plugin fails. Then `gc` still tries the other attachments, and the error has
/// all failures.
pub fn gc(chain: &Chain<'_>, collect: &Collect) -> anyhow::Result<()> {
    if chain.network.disable_gc {
        note("nothing is collected: disableGC is set");
        return Ok(());
    }
    if collect.all {
        // This calls the specification's GC with an empty list.
        return chain.remove_all();
    }
    let node = read_node(chain)?;
    let mut stale = Vec::new();
    let mut unseen = None;
    for remains in Remains::of_network(&node, chain.network) {
        let attachment = &remains.attachment;
        let names = (attachment.container.clone(), attachment.interface.clone());
        let is_listed = collect.valid.contains(&names);
        match life(&node, &remains) {
            _ if is_listed => {}
            Life::Lives if collect.valid.is_empty() => {}
            Life::Lives => note(format_args!(
                "{attachment} is not listed, but is live: kept"
            )),
            Life::Young => note(format_args!(
                "{attachment} was leased its address less than five minutes ago, and its ADD may \
                 still be running: kept"
            )),
            Life::Unseen(reason) if collect.valid.is_empty() => {
                note(format_args!("{attachment} may be live: kept"));
                unseen.get_or_insert(reason);
            }
            Life::Unseen(_) | Life::Gone => stale.push(remains),
        }
    }
    if let Some(reason) = unseen {
        let name = &chain.network.name;
        bail!(
            "nothing was removed, because gc may not see all live attachments: {reason}. List the live \
             ones with --valid, or, if no pod of network {name} runs on this node: cnitool gc {name} --all"
        );
    }
    all(stale.iter().map(|it| remove(chain, it)))
}

/// Calls DEL for the attachment, with the configuration of its ADD if a runtime cached that
/// configuration. Keeps an attachment that changes while `gc` runs.
fn remove(chain: &Chain<'_>, remains: &Remains<'_>) -> anyhow::Result<()> {
    let attachment = &remains.attachment;
    if !is_unchanged(chain, remains)? {
        note(format_args!("{attachment} changes at this moment: kept"));
        return Ok(());
    }
    note(format_args!("DEL {attachment}"));
    let unknown = Entry::default();
    let entry = remains.cached.map_or(&unknown, |it| &it.entry);
    let deleted = chain.del_as_added(&entry.sandbox(attachment));
    deleted.map_err(|error| anyhow!("{attachment}: {error:#}"))
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
