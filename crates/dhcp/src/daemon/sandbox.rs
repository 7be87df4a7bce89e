//! An attachment's interface in its sandbox, and the proof that the sandbox is gone.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use attach::{Presence, Witness};
use netlink::{Connection, Link};
use netns::Netns;

use crate::record::{Record, Seen};

/// Runs `work` in the sandbox, on another thread, and notes where the interface was.
pub(crate) async fn at_interface<T: Send + 'static>(
    record: &mut Record,
    work: impl FnOnce(&Connection, &Link) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (asked, seen) = (record.asked.clone(), record.seen.clone());
    let inside = move || {
        let interface = asked.attachment.interface.as_str();
        let (namespace, inside) = enter(&asked.netns, seen.as_ref())?;
        let (value, index, mac) = namespace.run(|| at(interface, seen.as_ref(), work))??;
        let witness = match seen {
            Some(seen) => seen.witness,
            None => Witness::new(&namespace, &inside, interface.to_owned())?
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

/// Returns whether the sandbox is proven gone.
pub(crate) fn is_gone(record: &Record) -> bool {
    let witness = record.seen.as_ref().map(|it| &it.witness);
    witness.is_some_and(|it| {
        matches!(it.presence(), Presence::Gone) || !it.is_of_this_boot().unwrap_or(true)
    })
}

/// Opens the sandbox, which is at `path` or was seen before.
fn enter(path: &Path, seen: Option<&Seen>) -> anyhow::Result<(Netns, Connection)> {
    let Some(seen) = seen else {
        let opened = Connection::open_if_present(path)?;
        return opened.with_context(|| format!("there is no sandbox at {}", path.display()));
    };
    match seen.witness.presence() {
        Presence::Present(namespace, inside) => Ok((namespace, inside)),
        Presence::Gone => bail!("the sandbox {} is gone", path.display()),
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
