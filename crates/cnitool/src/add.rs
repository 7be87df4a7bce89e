//! `add`: attaches a sandbox, and removes what a failed attachment left, as runtimes do.

use anyhow::{Context as _, anyhow, ensure};
use cni::{del_command, note};
use itertools::Itertools as _;
use netlink::Connection;
use node::Node;
use runtime::{Arguments, Chain, Sandbox};
use serde_json::Value;

use crate::settings::Settings;

/// Calls ADD of each plugin, and returns the result. If a plugin fails, calls DEL of all plugins,
/// unless something of the attachment existed before.
///
/// # Errors
/// A runtime attached the sandbox already, or a plugin fails. The error of ADD comes first, and names
/// the command that removes what may be left.
pub fn add(chain: &Chain<'_>, mut sandbox: Sandbox, settings: &Settings) -> anyhow::Result<Value> {
    if let Some(known) = chain.directories.cache.find(&sandbox)? {
        let (known, own) = (&known.attachment, &sandbox.attachment);
        ensure!(known == own, "a runtime attached it already, as {known}");
    }
    sandbox.arguments = settings.arguments(Arguments::default());
    note_unused(chain, &sandbox.arguments);
    let was_there = was_there(chain, &sandbox);
    let added = chain.add(&sandbox);
    added.map_err(|error| {
        let command = del_command(&sandbox.attachment, &sandbox.netns);
        let left = match was_there {
            Ok(None) => match chain.del(&sandbox) {
                Ok(()) => return error,
                Err(left) => format!("DEL failed, too: {left:#}; repeat it"),
            },
            Ok(Some(reason)) => format!("DEL was not called, because {reason}; to call it"),
            Err(reason) => format!("DEL was not called: {reason:#}; to call it"),
        };
        anyhow!("{error:#}\n{left}: {command}")
    })
}

/// Returns what of the attachment exists before its ADD: something that DEL after a failed ADD must
/// not remove, because it may belong to a live container.
fn was_there(chain: &Chain<'_>, sandbox: &Sandbox) -> anyhow::Result<Option<String>> {
    let attachment = &sandbox.attachment;
    let node = Node::attachments(chain.directories);
    if node.traces().contains_key(&attachment.owner()) {
        return Ok(Some(format!(
            "an earlier add of {attachment} left something"
        )));
    }
    let name = attachment.interface.as_str();
    let opened = Connection::open_if_present(&sandbox.netns).context("look into the sandbox")?;
    let Some((_, inside)) = opened else {
        return Ok(None);
    };
    let link = inside.find_link(name)?;
    Ok(link.map(|it| format!("the sandbox had an interface {} before", it.name)))
}

/// Reports values of `CAP_ARGS` that no plugin of the network gets.
fn note_unused(chain: &Chain<'_>, arguments: &Arguments) {
    let plugins = chain.network.plugins.iter();
    let taken: Vec<_> = plugins.flat_map(|it| &it.capabilities).collect();
    let named = match taken.iter().join(", ") {
        names if names.is_empty() => "none".to_owned(),
        names => names,
    };
    let keys = arguments.capabilities.keys();
    for key in keys.filter(|key| !taken.contains(key)) {
        note!(
            "CAP_ARGS: no plugin of network {} gets {key}; the capabilities of its list are: {named}",
            chain.network.name
        );
    }
}
