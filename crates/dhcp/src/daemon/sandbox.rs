//! An attachment's interface in its sandbox, and the proof that the sandbox is gone.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use attach::{Presence, Witness};
use netlink::{Connection, Link};
use netns::Netns;

use crate::record::{Record, Seen};

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
    let path = path(record, prefix);
    let seen = record.seen.clone();
    let inside = move || {
        let (namespace, inside) = enter(&path, seen.as_ref())?;
        let work = || at(interface.as_str(), seen.as_ref(), work);
        let (value, index, mac) = namespace.run(work)??;
        let is_same = |it: &Witness| it.is_of(&inside, namespace.path()).unwrap_or_default();
        let witness = match seen.map(|it| it.witness).filter(is_same) {
            Some(witness) => witness,
            None => Witness::new(&namespace, &inside, interface.to_string())?
                .numbered(&Connection::open()?, &namespace)?,
        };
        let seen = Seen {
            witness,
            index,
            mac,
        };
        anyhow::Ok((value, seen))
    };
    let (value, seen) = tokio::task::spawn_blocking(inside).await??;
    record.seen = Some(seen);
    Ok(value)
}

fn path(record: &Record, prefix: &str) -> PathBuf {
    format!("{prefix}{}", record.asked.netns.display()).into()
}

/// Looks whether the sandbox exists.
///
/// # Errors
/// [`Gone`] alone.
pub(crate) fn look(record: &Record, prefix: &str) -> Result<(), Gone> {
    let found = enter(&path(record, prefix), record.seen.as_ref());
    found.map_or_else(|error| error.downcast().map_or(Ok(()), Err), |_| Ok(()))
}

/// Opens the sandbox, which is at `path` or was seen before.
fn enter(path: &Path, seen: Option<&Seen>) -> anyhow::Result<(Netns, Connection)> {
    if let Some((namespace, inside)) = Connection::open_if_present(path)?
        && seen.map_or(Ok(true), |it| it.witness.is_of(&inside, path))?
    {
        return Ok((namespace, inside));
    }
    let seen = seen.with_context(|| format!("there is no sandbox at {}", path.display()))?;
    let has_rebooted = !seen.witness.is_of_this_boot()?;
    ensure!(!has_rebooted, Gone("the host has rebooted".to_owned()));
    match seen.witness.presence() {
        Presence::Present(namespace, inside) => Ok((namespace, inside)),
        Presence::Gone => bail!(Gone(format!("it was at {}", path.display()))),
        other => bail!(other.reason().unwrap_or_default()),
    }
}

/// Runs `work` for the interface `name` of the calling thread's namespace. Returns the interface's
/// index and MAC, too.
fn at<T>(
    name: &str,
    seen: Option<&Seen>,
    work: impl FnOnce(&Connection, &Link) -> anyhow::Result<T>,
) -> anyhow::Result<(T, u32, [u8; 6])> {
    let connection = Connection::open_wary()?;
    let link = connection.link(name)?;
    let mac = link.mac.context("the interface has no MAC")?.0;
    let is_same = seen.is_none_or(|it| it.index == link.index || it.mac == mac);
    ensure!(is_same, "{name} is another interface now");
    Ok((work(&connection, &link)?, link.index, mac))
}
