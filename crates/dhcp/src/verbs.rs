//! The verbs. Each asks the daemon.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use cni::{
    AddRequest, Answer, Answered, CheckRequest, CniArgs, DelRequest, Error, GcRequest,
    StatusRequest, Undo, note,
};
use facts::Keys;

use crate::client::ask;
use crate::config::{Config, socket, socket_path};
use crate::lease::Lease;
use crate::raw::RawConfig;
use crate::record::directory;
use crate::wire::{Asked, Request};

/// Returns the lease that the daemon gets from a server.
///
/// # Errors
/// - Codes 2, 4 and 7: the configuration or `CNI_ARGS` is invalid.
/// - Code 11: no daemon listens.
/// - Code 100: no server leases an address.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let (asked, socket) = asked(request)?;
    let priority = asked.priority;
    cni::step("lease an address");
    let lease = leased(&socket, &Request::Add(asked))?;
    let mut undo = Undo::default();
    undo.push("release the lease", || {
        release(&socket, &request.attachment.owner())
    });
    Ok(answer.give_and_keep(&lease.result(priority), undo)?)
}

/// Returns the lease in the daemon's answer. If no daemon listens, the error has code 11.
fn leased(socket: &Path, request: &Request) -> anyhow::Result<Lease> {
    let lease = ask(socket, request)?.map_err(Error::TryAgain)?;
    lease.context("the DHCP daemon answers without a lease")
}

/// Returns what the daemon is asked, and its socket.
fn asked(request: &AddRequest) -> anyhow::Result<(Asked, PathBuf)> {
    let config = Config::parse(&request.network, &request.args()?)?;
    let netns = std::path::absolute(&request.netns).context("read CNI_NETNS")?;
    let socket = config.socket.clone();
    Ok((
        Asked::new(request.attachment.clone(), netns, config),
        socket,
    ))
}

/// Releases the lease. Without a daemon, marks the lease, so that the next daemon releases it.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("release the lease");
    release(&socket(&request.network)?, &request.attachment.owner())
}

fn release(socket: &Path, owner: &str) -> anyhow::Result<()> {
    let request = Request::Del(owner.to_owned());
    let Err(reason) = ask(socket, &request)? else {
        return Ok(());
    };
    let retired = directory(socket).retire(owner);
    // A daemon that has started meanwhile may have read the record before it was renamed.
    if ask(socket, &request)?.is_err() && retired.text().is_some() {
        note!("{reason}. The next daemon will release the lease of {owner}");
    }
    Ok(())
}

/// Compares the lease with `prevResult`. Confirms a lease that the Go daemon got.
///
/// # Errors
/// The attachment has no lease, or one of another address.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let (asked, socket) = asked(request)?;
    let result = request.chained()?;
    cni::step("compare");
    let known = Lease::of_result(result).ok();
    let address = leased(&socket, &Request::Check(asked, known))?.address;
    let is_reported = result.ips.iter().any(|it| it.address == address.into());
    ensure!(
        is_reported,
        "the DHCP server leases {address} now, which prevResult lacks"
    );
    Ok(())
}

/// Checks the configuration and that the daemon answers.
///
/// # Errors
/// - Code 50: no daemon answers.
/// - Codes 2 and 7: the configuration is invalid.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &CniArgs::default())?;
    cni::step("ask the daemon");
    let answer = ask(&config.socket, &Request::Status).map_err(Error::unavailable)?;
    answer.map_err(Error::Unavailable)?;
    Ok(())
}

/// Releases the leases of attachments that the runtime does not list.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    cni::step("release leases");
    let (socket, is_stale) = (socket(&request.network)?, request.stale());
    let owners = directory(&socket).owners()?.into_iter();
    let stale = owners.filter(|it| is_stale(it));
    cni::all(stale.map(|it| release(&socket, &it)))
}

/// Returns a message if no daemon listens on the socket in `keys`. A Go daemon counts, because the
/// plugin on this node may be the Go one, too.
pub(crate) fn warnings(keys: &Keys) -> Vec<String> {
    let raw: RawConfig = facts::read(keys).unwrap_or_default();
    let socket = socket_path(&raw.daemon_socket_path).ok();
    let answer = socket.and_then(|it| ask(&it, &Request::Status).ok());
    answer.and_then(Result::err).into_iter().collect()
}
