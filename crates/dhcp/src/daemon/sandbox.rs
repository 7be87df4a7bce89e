//! An attachment's interface in its sandbox, and the proof that the sandbox is gone.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use cni::files::identity;
use netlink::{Connection, Link};
use netns::Netns;

use crate::record::{BOOT, MOUNTS, Record, Seen};

/// The sandbox is proven gone, for this reason. After any other error, the interface may exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Gone(String);

/// Runs `work` in the sandbox, on another thread, and notes where the interface was. `prefix` is the
/// path of the host's root directory.
pub(crate) async fn at_interface<T: Send + 'static>(
    record: &mut Record,
    prefix: &str,
    work: impl FnOnce(&Connection, &Link) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let interface = record.asked.attachment.interface.clone();
    let netns = record.asked.netns.clone();
    let path = path(record, prefix);
    let seen = record.seen.clone();
    let inside = move || {
        let path = Path::new(&path);
        let sandbox = sandbox(path, &netns, seen.as_ref())?;
        let work = || at(interface.as_str(), seen.as_ref(), work);
        let (value, index, mac) = Netns::open(path)?.run(work)??;
        let seen = Seen {
            boot: BOOT.clone(),
            mounts: *MOUNTS,
            sandbox,
            index,
            mac,
        };
        anyhow::Ok((value, seen))
    };
    let (value, seen) = tokio::task::spawn_blocking(inside).await??;
    record.seen = Some(seen);
    Ok(value)
}

fn path(record: &Record, prefix: &str) -> String {
    format!("{prefix}{}", record.asked.netns.display())
}

/// Looks whether the sandbox exists, without a thread.
///
/// # Errors
/// [`Gone`] alone.
pub(crate) fn look(record: &Record, prefix: &str) -> Result<(), Gone> {
    let path = path(record, prefix);
    let found = sandbox(Path::new(&path), &record.asked.netns, record.seen.as_ref());
    found.map_or_else(|error| error.downcast().map_or(Ok(()), Err), |_| Ok(()))
}

/// Returns device and inode of the sandbox at `path`.
///
/// A path that is missing proves nothing if the daemon did not see it before in its mount namespace,
/// or if it is below /proc or a link to there: the sandbox may exist without a process of this number.
fn sandbox(path: &Path, netns: &Path, seen: Option<&Seen>) -> anyhow::Result<Option<(u64, u64)>> {
    let found = fs::metadata(path);
    let missing = found.as_ref().err();
    let missing = missing.filter(|it| it.kind() == ErrorKind::NotFound);
    let missing = missing.map(|it| format!("open {}: {it}", path.display()));
    let found = identity(found);
    let Some(seen) = seen else {
        return Ok(found);
    };
    let has_rebooted = seen.boot != *BOOT;
    ensure!(!has_rebooted, Gone("the host has rebooted".to_owned()));
    let is_other = found.is_some() && found != seen.sandbox;
    let other = is_other.then(|| format!("{} is another sandbox now", path.display()));
    let Some(reason) = missing.or(other) else {
        return Ok(found);
    };
    let target = fs::read_link(path).unwrap_or_default();
    let is_process = [netns, &target].iter().any(|it| it.starts_with("/proc"));
    let is_proof = seen.mounts.is_some() && seen.mounts == *MOUNTS && !is_process;
    ensure!(!is_proof, Gone(reason));
    bail!(reason)
}

/// Runs `work` for the interface `name` of the calling thread's namespace. Returns the interface's
/// index and MAC, too.
fn at<T>(
    name: &str,
    seen: Option<&Seen>,
    work: impl FnOnce(&Connection, &Link) -> anyhow::Result<T>,
) -> anyhow::Result<(T, u32, [u8; 6])> {
    let connection = Connection::open()?;
    let link = connection.link(name)?;
    let mac = link.mac.context("the interface has no MAC")?.0;
    let is_same = seen.is_none_or(|it| it.index == link.index || it.mac == mac);
    ensure!(is_same, "{name} is another interface now");
    Ok((work(&connection, &link)?, link.index, mac))
}
