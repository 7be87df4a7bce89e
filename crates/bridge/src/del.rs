//! DEL: the pair, then the lease, whatever is left of them.

use cni::delegate::Delegate;
use cni::{Attachment, DelRequest, Network, Verb, note};
use netlink::{Connection, Link, LinkKind};

use crate::config;
use crate::plan;

/// Removes the pair and releases the lease. What is not there is removed.
///
/// # Errors
/// All that went wrong; every step is tried.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let host = Connection::open()?;
    let attachment = &request.attachment;
    all([
        delete_host_link(&host, attachment),
        delete_container_link(&host, request),
        forward(&request.network, Verb::Del),
    ])
}

/// Hands `verb` on to the plugin that manages addresses.
pub(crate) fn forward(network: &Network, verb: Verb) -> anyhow::Result<()> {
    if let Some(delegate) = Delegate::ipam(network)? {
        delegate.call(verb)?;
    }
    Ok(())
}

/// Every failure in one error; `Ok` where there is none.
pub(crate) fn all(outcomes: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => {
            let texts: Vec<_> = failures
                .iter()
                .map(|failure| format!("{failure:#}"))
                .collect();
            Err(anyhow::anyhow!("{}", texts.join("; ")))
        }
    }
}

/// Deletes the host's end, and the container's with it, by the name that follows from the
/// attachment.
///
/// A link of that name without alias is a pair whose ADD was killed.
pub(crate) fn delete_host_link(host: &Connection, attachment: &Attachment) -> anyhow::Result<()> {
    let name = plan::host_link_name(attachment);
    let Some(link) = host.find_link(&name)? else {
        return Ok(());
    };
    let owner = attachment.owner();
    match &link.alias {
        Some(alias) if *alias != owner => {
            note(format_args!(
                "{name} belongs to {alias}, not to {owner}: left alone"
            ));
            Ok(())
        }
        _ => delete(host, &link),
    }
}

/// Deletes the container's end of a pair that bears no mark of ours, as the reference
/// makes it: a veth whose other end is a port of the configured bridge.
fn delete_container_link(host: &Connection, request: &DelRequest) -> anyhow::Result<()> {
    let Some(path) = &request.netns else {
        return Ok(());
    };
    let Some(sandbox) = Connection::open_if_present(path)? else {
        return Ok(());
    };
    let Some(container) = sandbox.find_link(request.attachment.interface.as_str())? else {
        return Ok(());
    };
    let bridge = host.find_link(config::bridge_name(&request.network)?.as_str())?;
    match (other_end(host, &container)?, bridge) {
        (Some(peer), Some(bridge)) if peer.master == Some(bridge.index) => delete(host, &peer),
        _ => {
            note(format_args!(
                "{} in the sandbox is no end of a pair with a port of the bridge: left alone",
                container.name
            ));
            Ok(())
        }
    }
}

/// The host's end of a pair, where both ends name each other.
pub(crate) fn other_end(host: &Connection, container: &Link) -> anyhow::Result<Option<Link>> {
    let Some(index) = container.peer.filter(|_| container.kind == LinkKind::Veth) else {
        return Ok(None);
    };
    match host.link_by_index(index) {
        Ok(peer) if peer.kind == LinkKind::Veth && peer.peer == Some(container.index) => {
            Ok(Some(peer))
        }
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn delete(host: &Connection, link: &Link) -> anyhow::Result<()> {
    match host.delete_link(link) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}
