//! An attachment's interface in its sandbox, and the proof that the sandbox is gone.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, ensure};
use cni::files::identity;
use netlink::{Connection, Link};
use netns::Netns;

use crate::record::{BOOT, MOUNTS, Record, Seen};

#[derive(Debug)]
pub(crate) enum Absence {
    /// The sandbox is proven gone, for this reason.
    Gone(String),
    /// The interface or its sandbox may exist.
    Unknown(anyhow::Error),
}

impl Absence {
    pub(crate) fn into_error(self) -> anyhow::Error {
        match self {
            Self::Gone(reason) => anyhow::Error::msg(reason),
            Self::Unknown(error) => error,
        }
    }
}

impl From<anyhow::Error> for Absence {
    fn from(error: anyhow::Error) -> Self {
        Self::Unknown(error)
    }
}

/// Runs `work` in the sandbox, on another thread, and notes where the interface was. `prefix` is the
/// path of the host's root directory.
pub(crate) async fn at_interface<T: Send + 'static>(
    record: &mut Record,
    prefix: &str,
    work: impl FnOnce(&Connection, &Link) -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Absence> {
    let unknown = |error: anyhow::Error| Absence::Unknown(error);
    let attachment = record.names().attachment().map_err(unknown)?;
    let path = format!("{prefix}{}", record.asked.netns.display());
    let is_process = record.asked.netns.starts_with("/proc");
    let seen = record.seen.clone();
    let inside = move || {
        let path = Path::new(&path);
        let sandbox = sandbox(path, seen.as_ref(), is_process)?;
        let enter = || {
            let namespace = Netns::open(path)?;
            namespace.run(|| at(attachment.interface.as_str(), seen.as_ref(), work))?
        };
        let (value, index, mac) = enter().map_err(Absence::Unknown)?;
        let seen = Seen {
            boot: BOOT.clone(),
            mounts: *MOUNTS,
            sandbox,
            index,
            mac,
        };
        Ok::<_, Absence>((value, seen))
    };
    let done = tokio::task::spawn_blocking(inside).await;
    let (value, seen) = done.map_err(|it| unknown(it.into()))??;
    record.seen = Some(seen);
    Ok(value)
}

/// Returns device and inode of the sandbox at `path`.
///
/// A path that is missing proves nothing if the daemon did not see it before in its mount namespace,
/// or if it is below /proc: the sandbox may exist without a process of this number.
fn sandbox(
    path: &Path,
    seen: Option<&Seen>,
    is_process: bool,
) -> Result<Option<(u64, u64)>, Absence> {
    let found = fs::metadata(path);
    let missing = matches!(&found, Err(error) if error.kind() == ErrorKind::NotFound);
    let reason = found
        .as_ref()
        .err()
        .map(|it| format!("open {}: {it}", path.display()));
    let found = identity(found);
    let Some(seen) = seen else {
        return Ok(found);
    };
    if seen.boot != *BOOT {
        return Err(Absence::Gone("the host has rebooted".to_owned()));
    }
    let is_other = found.is_some() && found != seen.sandbox;
    if !missing && !is_other {
        return Ok(found);
    }
    let reason = reason.unwrap_or_else(|| format!("{} is another sandbox now", path.display()));
    let is_proof = seen.mounts.is_some() && seen.mounts == *MOUNTS && !is_process;
    Err(match () {
        () if is_proof => Absence::Gone(reason),
        () => Absence::Unknown(anyhow::Error::msg(reason)),
    })
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
