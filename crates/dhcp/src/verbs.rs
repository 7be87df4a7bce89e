//! The verbs. Each asks the daemon.

use std::path::Path;

use anyhow::{Context as _, ensure};
use cni::{
    AddRequest, Answer, Answered, Attachment, CheckRequest, CniArgs, DelRequest, Error, GcRequest,
    StatusRequest, Undo, note,
};
use facts::Keys;

use crate::client::{NoDaemon, absence, ask};
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
    let config = Config::parse(&request.network, &request.args()?)?;
    cni::step("lease an address");
    let lease = leased(&config.socket, &Request::Add(asked(request, &config)?))?;
    let mut undo = Undo::default();
    undo.push("release the lease", || {
        release(&config.socket, &request.attachment)
    });
    Ok(answer.give_and_keep(&lease.result(config.priority), undo)?)
}

/// Returns the lease in the daemon's answer. If no daemon listens, the error has code 11.
fn leased(socket: &Path, request: &Request) -> anyhow::Result<Lease> {
    let answer = ask(socket, request).map_err(|error| {
        let absence = error.downcast::<NoDaemon>();
        absence.map_or_else(|it| it, |it| Error::TryAgain(it.to_string()).into())
    });
    answer?.context("the DHCP daemon answers without a lease")
}

fn asked(request: &AddRequest, config: &Config) -> anyhow::Result<Asked> {
    Ok(Asked {
        attachment: request.attachment.clone(),
        netns: std::path::absolute(&request.netns).context("read CNI_NETNS")?,
        options: config.options.clone(),
        priority: config.priority,
    })
}

/// Releases the lease. Without a daemon, marks the lease, so that the next daemon releases it.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("release the lease");
    release(&socket(&request.network)?, &request.attachment)
}

fn release(socket: &Path, attachment: &Attachment) -> anyhow::Result<()> {
    let request = Request::Del(attachment.clone());
    let Some(reason) = absence(ask(socket, &request))? else {
        return Ok(());
    };
    let retired = directory(socket).retire(&attachment.owner());
    // A daemon that has started meanwhile may have read the record before it was renamed.
    let is_absent = absence(ask(socket, &request))?.is_some();
    if is_absent && retired.text().is_some() {
        note!("{reason}. The next daemon will release the lease of {attachment}");
    }
    Ok(())
}

/// Compares the lease with `prevResult`. Confirms a lease that the Go daemon got.
///
/// # Errors
/// The attachment has no lease, or one of another address.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    let result = request.chained()?;
    cni::step("compare");
    let known = Lease::of_result(result).ok();
    let asked = Request::Check(asked(request, &config)?, known);
    let address = leased(&config.socket, &asked)?.address;
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
    let answer = ask(&config.socket, &Request::Status);
    answer.map_err(Error::unavailable)?;
    Ok(())
}

/// Releases the leases of attachments that the runtime does not list.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    cni::step("release leases");
    let socket = socket(&request.network)?;
    let valid = request.valid.iter();
    let valid = valid.map(|it| (it.container.clone(), it.interface.clone()));
    let asked = Request::Gc(request.network.name.clone(), valid.collect());
    if absence(ask(&socket, &asked))?.is_some() {
        directory(&socket).retire_stale(request.stale())?;
        // As in `release`, a daemon may have started meanwhile.
        absence(ask(&socket, &asked))?;
    }
    Ok(())
}

/// Returns a message if no daemon listens on the socket in `keys`. A Go daemon counts, because the
/// plugin on this node may be the Go one, too.
pub(crate) fn warnings(keys: &Keys) -> Vec<String> {
    let raw: RawConfig = facts::read(keys).unwrap_or_default();
    let Ok(socket) = socket_path(&raw.daemon_socket_path) else {
        return Vec::new();
    };
    let absent = absence(ask(&socket, &Request::Status)).ok().flatten();
    absent.iter().map(ToString::to_string).collect()
}
