//! `gc`: removes resources of attachments that are proven to be stale. If `--valid` lists
//! attachments to keep, `gc` also removes unlisted ones that may be stale.

use anyhow::{Context as _, bail};
use clap::Args;
use cni::{ContainerId, InterfaceName, all, note};
use node::Node;
use runtime::{Chain, Conflist, Directories};
use upkeep::{Candidate, Liveness, judge, read_node, remove};

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

/// Removes resources of stale attachments of the network `chain.network`; with `--all`, of all its
/// attachments. Removes nothing if the network sets `disableGC`.
///
/// # Errors
/// Without `--all`, `gc` removes nothing if a part of the node other than the firewall cannot be
/// read. Without `--all` and `--valid`, it removes nothing if it cannot find out whether some
/// attachment is live. If a plugin fails, `gc` still tries the other attachments, and the error has
/// all failures.
pub fn gc(chain: &Chain<'_>, collect: &Collect) -> anyhow::Result<()> {
    if chain.network.disable_gc {
        note("nothing is collected: disableGC is set");
        return Ok(());
    }
    if collect.all {
        // `remove_all` calls DEL for each cached attachment, then GC of each plugin with an empty
        // list of valid attachments.
        return chain.remove_all();
    }
    let node = read(chain.directories)?;
    let stale = stale(&node, chain.network, collect)?;
    all(stale.iter().map(|it| remove(chain, it).map(drop)))
}

/// Returns the attachments to remove. Reports on standard error why it keeps attachments that
/// `--valid` does not list. Without `--valid`, does not report live ones.
///
/// # Errors
/// `--valid` lists an ID that is cut short. Without `--valid`: the node does not show whether some
/// attachment is live.
fn stale<'n>(
    node: &'n Node,
    network: &Conflist,
    collect: &Collect,
) -> anyhow::Result<Vec<Candidate<'n>>> {
    let mut stale = Vec::new();
    let mut unseen = None;
    let judged = judge(node, network);
    expect_whole(&judged, network, &collect.valid)?;
    for (state, candidate) in judged {
        let attachment = &candidate.attachment;
        let is_listed = collect.valid.contains(&names_of(&candidate));
        match state {
            _ if is_listed => {}
            Liveness::Live if collect.valid.is_empty() => {}
            Liveness::Live => note!("{attachment} is not listed, but is live: kept"),
            Liveness::Young => note!(
                "{attachment} was leased its address less than five minutes ago, and its ADD may \
                 still be running: kept"
            ),
            Liveness::Unproven(reason) if collect.valid.is_empty() => {
                note!("{attachment} may be live: kept");
                unseen.get_or_insert(reason);
            }
            Liveness::Unproven(_) | Liveness::Gone => stale.push(candidate),
        }
    }
    let Some(reason) = unseen else {
        return Ok(stale);
    };
    let name = &network.name;
    bail!(
        "nothing was removed, because gc may not see all live attachments: {reason}. List the live \
         ones with --valid, or, if no pod of network {name} runs on this node: cnitool gc {name} --all"
    );
}

/// Fails if an ID that `--valid` lists is the start of one on this node. Reports the other attachments of
/// which the node has no trace.
fn expect_whole(
    judged: &[(Liveness, Candidate<'_>)],
    network: &Conflist,
    valid: &[(ContainerId, InterfaceName)],
) -> anyhow::Result<()> {
    let known: Vec<_> = judged.iter().map(|(_, it)| names_of(it)).collect();
    for (container, interface) in valid.iter().filter(|it| !known.contains(it)) {
        let mut ids = known.iter().map(|it| it.0.as_str());
        let name = &network.name;
        if ids.any(|it| it.starts_with(container.as_str()) && it != container.as_str()) {
            bail!(
                "nothing was removed, because the ID {container} in --valid is cut short: see the \
                 whole IDs in cnitool ps --json"
            );
        }
        note!("{container}/{interface} is listed, but network {name} has no such attachment");
    }
    Ok(())
}

fn names_of(candidate: &Candidate<'_>) -> (ContainerId, InterfaceName) {
    let attachment = &candidate.attachment;
    (attachment.container.clone(), attachment.interface.clone())
}

fn read(directories: &Directories) -> anyhow::Result<Node> {
    let node = read_node(directories)?;
    for (_, reason) in &node.unread {
        note!("{reason}; going on without it");
    }
    Ok(node)
}
