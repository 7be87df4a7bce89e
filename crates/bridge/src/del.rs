//! DEL: `nf_tables` elements, the pair, then the lease, whatever is left of them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use cni::delegate::{Delegate, Waiting};
use cni::{Attachment, DelRequest, Network, Verb, note};
use detach::Detached;
use netlink::{Connection, Link};
use netns::{Netns, NetnsLock};

use crate::firewall::{self, Removed};
use crate::{config, plan};

/// Removes what keeps guard over the pair, the pair, and releases the lease. What is not there
/// is removed.
///
/// # Errors
/// All that went wrong. Every step is tried, but for the lease: an address whose port lives
/// must not be leased again.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("start the IPAM plugin");
    // It starts while the links go, and releases nothing before they are gone.
    let lease = Delegate::ipam(&request.network)
        .and_then(|delegate| delegate.map(|it| it.start(Verb::Del)).transpose());
    let host = Connection::open()?;
    let attachment = &request.attachment;
    cni::step("remove nf_tables elements");
    let lock = keep_reload_out();
    let (protection, socket) = match remove_protection(attachment) {
        Ok(removed) => (Ok(()), removed.socket),
        Err(error) => (Err(error), None),
    };
    cni::step("delete the pair");
    let links = match delete_host_link(&host, attachment, socket) {
        Ok(Pair::Deleted) => Ok(()),
        Ok(Pair::NotOurs) => delete_container_link(&host, request),
        Err(error) => Err(error),
    };
    drop(lock);
    cni::step("release the lease");
    let lease = match links {
        Ok(()) => lease.and_then(release).map_err(anyhow::Error::from),
        Err(_) => Ok(()),
    };
    cni::all([protection, links, lease])
}

fn release(lease: Option<Waiting<'_>>) -> Result<(), cni::Error> {
    if let Some(lease) = lease {
        lease.proceed()?.finish()?;
    }
    Ok(())
}

/// Until the pair is gone, by which RELOAD knows whose elements to put back. Without a lock no more
/// can happen than that elements are left to GC.
pub(crate) fn keep_reload_out() -> Option<NetnsLock> {
    Netns::own()
        .and_then(|host| host.lock_shared(RELOAD_OF_ONE))
        .ok()
}

/// Removes the attachment's elements from `nf_tables`.
pub(crate) fn remove_protection(attachment: &Attachment) -> anyhow::Result<Removed> {
    let owner = attachment.owner();
    firewall::remove(|it| it == owner)
}

/// Hands `verb` on to the plugin that manages addresses.
pub(crate) fn forward(network: &Network, verb: Verb) -> anyhow::Result<()> {
    if let Some(delegate) = Delegate::ipam(network)? {
        delegate.call(verb)?;
    }
    Ok(())
}

/// What was found of an attachment's pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    /// It was there, and both ends are gone.
    Deleted,
    /// There is none of ours.
    NotOurs,
}

/// Deletes the host's end, and the container's with it, by the name that follows from the
/// attachment.
///
/// A link of that name without alias is a pair whose ADD was killed. `last` is closed when the
/// kernel has freed the link, and nobody waits for it.
pub(crate) fn delete_host_link(
    host: &Connection,
    attachment: &Attachment,
    last: Option<OwnedFd>,
) -> anyhow::Result<Pair> {
    let name = plan::host_link_name(attachment);
    let Some(link) = host.find_link(&name)? else {
        // It is closed here where no other process can be had.
        last.map(Detached::close).transpose().ok();
        return Ok(Pair::NotOurs);
    };
    let owner = attachment.owner();
    match &link.alias {
        Some(alias) if *alias != owner => {
            note(format_args!(
                "{name} belongs to {alias}, not to {owner}: left alone"
            ));
            Ok(Pair::NotOurs)
        }
        _ => remove(host, &link, last).map(|()| Pair::Deleted),
    }
}

/// Deletes the container's end of a pair that bears no mark of ours, as the reference
/// makes it: a veth whose other end is a port of the configured bridge.
fn delete_container_link(host: &Connection, request: &DelRequest) -> anyhow::Result<()> {
    let Some(path) = &request.netns else {
        return Ok(());
    };
    let Some((namespace, sandbox)) = Connection::open_if_present(path)? else {
        return Ok(());
    };
    let Some(container) = sandbox.find_link(request.attachment.interface.as_str())? else {
        return Ok(());
    };
    let bridge = host.find_link(config::bridge_name(&request.network)?.as_str())?;
    let peer = host.other_end(&container, &namespace)?;
    let owner = request.attachment.owner();
    let is_ours = |peer: &Link| {
        let is_port = bridge.is_some() && peer.master == bridge.as_ref().map(|it| it.index);
        is_port && peer.alias.as_ref().is_none_or(|alias| *alias == owner)
    };
    if let Some(peer) = peer.filter(is_ours) {
        return remove(host, &peer, None);
    }
    note(format_args!(
        "{} in the sandbox is no end of a pair with a port of the bridge: left alone",
        container.name
    ));
    Ok(())
}

/// Deletes the link, which may be gone.
pub(crate) fn remove(host: &Connection, link: &Link, last: Option<OwnedFd>) -> anyhow::Result<()> {
    match host.remove_link(link, last) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Far longer than a RELOAD keeps its lock, which anybody on the host can keep for ever.
const RELOAD_OF_ONE: Duration = Duration::from_secs(2);
