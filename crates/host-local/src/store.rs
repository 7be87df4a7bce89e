//! The leases on disk, in the format of the reference.
//!
//! `<dataDir>/<network>/<address>` says who holds an address, `last_reserved_ip.<n>` which
//! one range set `n` gave last, and `lock` keeps everybody else out meanwhile. Nothing
//! else may lie there, since the reference reads every file: what is being written stands
//! in `<dataDir>/.host-local` until it is whole.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use cni::{Attachment, Error, NetworkName, note};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tempfile::NamedTempFile;

use crate::lease::{self, Holder};

/// The locked leases of one network.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    scratch: PathBuf,
    _lock: Flock<File>,
}

/// Where leases lie, and how patiently they are waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where the leases of all networks lie.
    pub data_dir: PathBuf,
    /// How long somebody else may keep the lock.
    pub lock_timeout: Duration,
}

/// An address and who holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The address.
    pub address: IpAddr,
    /// Its holder.
    pub holder: Holder,
}

/// Whether an address was still to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reservation {
    /// It is ours now.
    Made,
    /// Somebody else was quicker.
    Taken,
}

impl Store {
    /// Locks the leases of `network`, making the directories where they are missing.
    pub fn open(place: &Place, network: &NetworkName) -> anyhow::Result<Self> {
        let [directory, scratch] = directories(&place.data_dir, network);
        for path in [&directory, &scratch] {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.with_context(|| format!("create directory {}", path.display()))?;
        }
        Self::lock(directory, scratch, place.lock_timeout)
    }

    /// Locks the leases of `network`, if it ever had any.
    pub fn open_existing(place: &Place, network: &NetworkName) -> anyhow::Result<Option<Self>> {
        let [directory, scratch] = directories(&place.data_dir, network);
        if !directory
            .try_exists()
            .with_context(|| format!("look for {}", directory.display()))?
        {
            return Ok(None);
        }
        Self::lock(directory, scratch, place.lock_timeout).map(Some)
    }

    fn lock(directory: PathBuf, scratch: PathBuf, timeout: Duration) -> anyhow::Result<Self> {
        let path = directory.join(LOCK);
        let action = || format!("lock {}", path.display());
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let lock = lock_within(file.with_context(action)?, timeout).with_context(action)?;
        Ok(Self {
            directory,
            scratch,
            _lock: lock,
        })
    }

    /// Every lease. Reads the whole directory.
    ///
    /// What bears the name of an address but cannot be read is told and left out, so that
    /// one of it does not keep all others from their addresses.
    pub fn leases(&self) -> anyhow::Result<Vec<Lease>> {
        let action = || format!("read directory {}", self.directory.display());
        let mut leases = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(action)? {
            let name = entry.with_context(action)?.file_name();
            let Some(address) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match self.holder(address) {
                Ok(Some(holder)) => leases.push(Lease { address, holder }),
                Ok(None) => {}
                Err(error) => note(format_args!("{error:#}; it is left as it is")),
            }
        }
        Ok(leases)
    }

    /// The leases of `attachment`: its own or, where there are none, those that an old
    /// version of the reference made for its container.
    pub fn leases_of(&self, attachment: &Attachment) -> anyhow::Result<Vec<IpAddr>> {
        let leases = self.leases()?;
        let of = |is_it: &dyn Fn(&Holder) -> bool| -> Vec<_> {
            let found = leases.iter().filter(|lease| is_it(&lease.holder));
            found.map(|lease| lease.address).collect()
        };
        let own = of(&|holder| holder.is(attachment));
        if own.is_empty() {
            return Ok(of(&|holder| holder.is_old_entry_of(attachment)));
        }
        Ok(own)
    }

    /// Who holds `address`, if anybody does.
    pub fn holder(&self, address: IpAddr) -> anyhow::Result<Option<Holder>> {
        let path = self.file(address);
        match fs::read(&path) {
            Ok(content) => Ok(Some(Holder::parse(&String::from_utf8_lossy(&content)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read lease {}", path.display())),
        }
    }

    /// Leases `address` to `attachment`, if it is free. Its file is whole or absent,
    /// whatever happens meanwhile.
    pub fn reserve(&self, address: IpAddr, attachment: &Attachment) -> anyhow::Result<Reservation> {
        let path = self.file(address);
        let action = || format!("write lease {}", path.display());
        let file = self
            .written(&lease::content(attachment))
            .with_context(action)?;
        match file.persist_noclobber(&path) {
            Ok(_) => Ok(Reservation::Made),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(Reservation::Taken)
            }
            Err(error) => Err(error.error).with_context(action),
        }
    }

    /// Gives `address` back; it may be free already.
    pub fn release(&self, address: IpAddr) -> anyhow::Result<()> {
        let path = self.file(address);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove lease {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Gives all of `addresses` back; one that cannot be does not keep the others.
    ///
    /// # Errors
    /// Every one that could not be given back.
    pub fn release_all(&self, addresses: impl IntoIterator<Item = IpAddr>) -> anyhow::Result<()> {
        let outcomes = addresses.into_iter().map(|address| self.release(address));
        let failures: Vec<_> = outcomes.filter_map(Result::err).collect();
        let failures: Vec<_> = failures.iter().map(|error| format!("{error:#}")).collect();
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(())
    }

    /// The address that range set `set` gave last; `None` where that is unknown.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let text = fs::read_to_string(self.last_reserved_file(set)).ok()?;
        text.trim().parse().ok()
    }

    /// Remembers the address that range set `set` gave last.
    pub fn set_last_reserved(&self, set: usize, address: IpAddr) -> anyhow::Result<()> {
        let path = self.last_reserved_file(set);
        let action = || format!("write {}", path.display());
        let file = self.written(&address.to_string()).with_context(action)?;
        file.persist(&path)
            .map_err(|error| error.error)
            .with_context(action)?;
        Ok(())
    }

    fn written(&self, content: &str) -> io::Result<NamedTempFile> {
        let mut file = NamedTempFile::new_in(&self.scratch)?;
        file.write_all(content.as_bytes())?;
        Ok(file)
    }

    fn file(&self, address: IpAddr) -> PathBuf {
        self.directory.join(address.to_string())
    }

    fn last_reserved_file(&self, set: usize) -> PathBuf {
        self.directory.join(format!("last_reserved_ip.{set}"))
    }
}

/// Takes the lock at once or, on a thread that keeps its turn, within `timeout`.
///
/// The reference takes the same lock, by flock(2). A thread that is too late ends with the
/// process.
fn lock_within(file: File, timeout: Duration) -> anyhow::Result<Flock<File>> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, errno)) => return Err(errno.into()),
    };
    let (turn, ours) = mpsc::channel();
    thread::spawn(move || drop(turn.send(Flock::lock(file, FlockArg::LockExclusive))));
    match ours.recv_timeout(timeout) {
        Ok(lock) => lock.map_err(|(_, errno)| errno.into()),
        Err(_) => Err(Error::TryAgain {
            reason: format!(
                "somebody else keeps the lock for more than {}",
                humantime::format_duration(timeout)
            ),
        }
        .into()),
    }
}

/// Where the leases of `network` lie, and where they stand until they are whole.
pub(crate) fn directories(data_dir: &Path, network: &NetworkName) -> [PathBuf; 2] {
    [data_dir.join(network.as_str()), data_dir.join(SCRATCH)]
}

const LOCK: &str = "lock";

/// No network can have this name, since none starts with a dot.
const SCRATCH: &str = ".host-local";

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
