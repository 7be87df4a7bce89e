//! The verbs. Each asks the daemon.

use std::path::Path;

use anyhow::{Context as _, bail};
use cni::{
    AddRequest, Answer, Answered, Attachment, CheckRequest, CniArgs, DelRequest, Error, GcRequest,
    StatusRequest, Undo, note,
};
use facts::Keys;

use crate::client::{Failure, ask};
use crate::config::{Config, socket, socket_path};
use crate::lease::Lease;
use crate::raw::RawConfig;
use crate::record::directory;
use crate::wire::{Asked, Names, Request};

/// Returns the lease that the daemon gets from a server.
///
/// # Errors
/// - Codes 2, 4 and 7: the configuration or `CNI_ARGS` is invalid.
/// - Code 11: no daemon listens.
/// - Code 100: no server leases an address.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network, &request.args()?)?;
    cni::step("lease an address");
    let lease = ask(&config.socket, &Request::Add(asked(request, &config)?))?;
    let mut undo = Undo::default();
    undo.push("release the lease", || {
        release(&config.socket, &request.attachment)
    });
    let lease = lease.context("the DHCP daemon answers without a lease")?;
    Ok(answer.give_and_keep(&lease.result(config.priority), undo)?)
}

fn asked(request: &AddRequest, config: &Config) -> anyhow::Result<Asked> {
    Ok(Asked {
        names: Names::of(&request.attachment),
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
    let request = Request::Del(Names::of(attachment));
    let Err(failure) = ask(socket, &request) else {
        return Ok(());
    };
    if matches!(failure, Failure::Other(_)) {
        return Err(failure.into());
    }
    let retired = directory(socket).retire(&attachment.owner());
    let has_lease = retired.text().is_some();
    // A daemon that has started meanwhile may have read the record before it was renamed.
    match ask(socket, &request) {
        Err(Failure::NoDaemon { .. }) if has_lease => {
            let failure = failure.text();
            note!("{failure}. It will release the lease of {attachment}");
            Ok(())
        }
        Err(Failure::NoDaemon { .. }) => Ok(()),
        answer => Ok(answer.map(drop)?),
    }
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
    let lease = ask(&config.socket, &asked)?.context("the DHCP daemon answers without a lease")?;
    if !result
        .ips
        .iter()
        .any(|it| it.address == lease.address.into())
    {
        bail!(
            "the DHCP server leases {} now, which prevResult lacks",
            lease.address
        );
    }
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
    answer.map_err(|failure| Error::Unavailable(failure.text()))?;
    Ok(())
}

/// Releases the leases of attachments that the runtime does not list.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    cni::step("release leases");
    let socket = socket(&request.network)?;
    let valid = request.valid.iter();
    let valid = valid.map(|it| (it.container.to_string(), it.interface.to_string()));
    let asked = Request::Gc(request.network.name.to_string(), valid.collect());
    match ask(&socket, &asked) {
        Err(Failure::NoDaemon { .. }) => {
            directory(&socket).retire_stale(request.stale())?;
            Ok(())
        }
        answer => Ok(answer.map(drop)?),
    }
}

/// Returns a message if no daemon listens on the socket in `keys`. A Go daemon counts, because the
/// plugin on this node may be the Go one, too.
pub(crate) fn doubts(keys: &Keys) -> Vec<String> {
    let raw: RawConfig = facts::read(keys).unwrap_or_default();
    let Ok(socket) = socket_path(&raw.daemon_socket_path) else {
        return Vec::new();
    };
    match ask(&socket, &Request::Status) {
        Err(failure @ Failure::NoDaemon { .. }) => vec![failure.text()],
        _ => Vec::new(),
    }
}
