//! The leases of one network on disk, in the format of the Go plugin `host-local`.
//!
//! The file `<dataDir>/<network>/<address>` contains the holder of an address. The file
//! `last_reserved_ip.<n>` in the same directory contains the last address that range set `n`
//! provided. Apart from the lock file, the directory may contain no other file, because the Go
//! plugin reads every file there. So incomplete files are written to another directory if possible.
//! This module takes no lock; its callers must hold the network's lock for every change.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use cni::files::if_present;
use serde::{Deserialize, Serialize};

use crate::scratch::{Scratch, remove_file};
use crate::{Holder, Lease, read};

/// The directory of a network's leases.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    scratch: Scratch,
    /// The modification time that this plugin gave the directory, to detect changes by other
    /// programs. `None` if the directory is not watched.
    ///
    /// When a file is added or removed, the kernel sets the directory's modification time to the
    /// current time. After each change of its own, the plugin sets it to a past time. As long as
    /// the directory has that time, no other program has changed it. There is one exception: a
    /// program that does not take the lock may change the directory just before the plugin sets
    /// the time. The plugin does not notice that change.
    ///
    /// If another program has changed the directory, the next change by the plugin does not set
    /// the time again, because that would hide the other program's change: `watched` becomes
    /// `None`.
    ///
    /// The past time is necessary, because the kernel's clock advances only every few milliseconds.
    /// If the plugin left the current time, a change by another program could have the same time.
    watched: Cell<Option<Stamp>>,
}

/// Content of a lease's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The holder of the address.
    Holder(Holder),
    /// Nothing: the writing process was killed before it wrote the holder.
    Empty,
    /// Text without a valid holder, or a symbolic link, pipe, socket or device instead of a file.
    Garbled,
}

/// A time as the file system stores it: seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp(i64, i64);

/// Inode and ctime of a file, to recognise a replaced file. A later file with the same name has
/// another identity, except within one tick of the kernel's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The inode, which a later file may have, too.
    pub inode: u64,
    ctime: Stamp,
}

impl Identity {
    /// Returns the identity of a file.
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            ctime: Stamp(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Content {
    /// Returns the content of the lease's file at `path`; `None` if there is no file. A symbolic
    /// link, pipe, socket or device counts as [`Content::Garbled`].
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let bytes = match if_present(read::own(path)) {
            Err(_) if is_special(path) => return Ok(Some(Self::Garbled)),
            bytes => bytes.with_context(|| format!("read lease {}", path.display()))?,
        };
        Ok(bytes.map(|bytes| match Holder::parse(&bytes) {
            Some(holder) => Self::Holder(holder),
            None if bytes.trim_ascii().is_empty() => Self::Empty,
            None => Self::Garbled,
        }))
    }
}

impl Directory {
    /// Opens the directory at `path`. New files are written in `scratch` and then renamed to
    /// `path`. If `scratch` is on another file system, they are written in `path`, because
    /// rename(2) works only within a file system.
    pub fn new(path: PathBuf, scratch: Scratch) -> Self {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let scratch = match (device(&path), device(&scratch.0)) {
            (Some(own), Some(aside)) if own != aside => Scratch(path.clone()),
            _ => scratch,
        };
        Self {
            path,
            scratch,
            watched: Cell::default(),
        }
    }

    /// Returns whether `address` has a lease file, whatever the file contains.
    pub fn has(&self, address: IpAddr) -> bool {
        fs::symlink_metadata(self.file(address)).is_ok()
    }

    /// Returns every address with a lease file, whatever the file contains.
    pub fn addresses(&self) -> anyhow::Result<BTreeSet<IpAddr>> {
        let names = read::names(&self.path)?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Returns the content of the lease file of `address`; `None` if there is no file.
    pub fn content(&self, address: IpAddr) -> anyhow::Result<Option<Content>> {
        Content::read(&self.file(address))
    }

    /// Returns the holder that the lease file of `address` names. Returns `None` if there is no
    /// file, or if it names no valid holder.
    pub fn holder(&self, address: IpAddr) -> anyhow::Result<Option<Holder>> {
        Ok(match self.content(address)? {
            Some(Content::Holder(holder)) => Some(holder),
            _ => None,
        })
    }

    /// Writes the file of `lease`. Returns `false` and changes nothing if the address already has a
    /// file. The file is complete or absent even if this process is killed.
    pub fn create(&self, lease: &Lease) -> anyhow::Result<bool> {
        let path = self.file(lease.address);
        let action = || format!("write lease {}", path.display());
        let content = lease.holder.content();
        let file = self.scratch.write(&content).with_context(action)?;
        match self.change(|| file.persist_noclobber(&path)) {
            Ok(_) => Ok(true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.error).with_context(action),
        }
    }

    /// Removes the lease files of `addresses` and returns the outcomes in the same order. A missing
    /// file counts as success.
    ///
    /// All removals are one [`Self::change`], so the directory's modification time is set once.
    pub fn remove(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<anyhow::Result<()>> {
        let remove = |address| {
            let path = self.file(address);
            remove_file(&path).with_context(|| format!("remove lease {}", path.display()))
        };
        self.change(|| addresses.into_iter().map(remove).collect())
    }

    /// Returns inode and ctime of the lease file of `address`, to recognise a replaced file; `None`
    /// if there is no file.
    pub fn identity(&self, address: IpAddr) -> anyhow::Result<Option<Identity>> {
        let path = self.file(address);
        let metadata = if_present(fs::symlink_metadata(&path))
            .with_context(|| format!("look at lease {}", path.display()))?;
        Ok(metadata.as_ref().map(Identity::of))
    }

    /// Returns the address that was last leased from range set `set`; `None` if it is unknown. The
    /// next lease without a requested address continues after it.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let bytes = read::own(&self.last_reserved_file(set)).ok()?;
        str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }

    /// Records `address` as the one that was last leased from range set `set`.
    pub fn set_last_reserved(&self, set: usize, address: IpAddr) -> anyhow::Result<()> {
        let path = self.last_reserved_file(set);
        let replace = || self.scratch.replace(&path, &address.to_string());
        let written = self.change(replace);
        written.with_context(|| format!("write {}", path.display()))
    }

    /// Starts to watch the directory for changes by other programs: sets its modification time to a
    /// past time, which any change replaces by the current time.
    pub fn watch(&self) {
        self.watched.set(self.date_back().ok());
    }

    /// Continues the watch of an earlier process. `date` is the modification time that the earlier
    /// process gave the directory. Returns `true` if no other program has changed the directory
    /// since then.
    pub fn resume_watch(&self, date: Stamp) -> bool {
        self.watched.set(Some(date));
        self.undisturbed_since().is_some()
    }

    /// Returns the modification time that this plugin gave the directory; `None` if the directory
    /// is not watched, or if another program has changed it since then.
    pub fn undisturbed_since(&self) -> Option<Stamp> {
        let date = self.watched.get()?;
        let metadata = fs::metadata(&self.path).ok()?;
        (Stamp::of(&metadata) == date).then_some(date)
    }

    /// Calls `change`, which changes the directory. Afterwards, if the directory is watched, sets
    /// its modification time to a past time, so that later changes by other programs are detected.
    /// Ends the watch if another program changed the directory before this call.
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let before = self.undisturbed_since();
        let outcome = change();
        let after = before.and_then(|_| self.date_back().ok());
        self.watched.set(after);
        outcome
    }

    fn date_back(&self) -> io::Result<Stamp> {
        let past = SystemTime::now()
            .checked_sub(BACK)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let directory = File::open(&self.path)?;
        directory.set_modified(past)?;
        Ok(Stamp::of(&directory.metadata()?))
    }

    fn file(&self, address: IpAddr) -> PathBuf {
        self.path.join(address.to_string())
    }

    fn last_reserved_file(&self, set: usize) -> PathBuf {
        self.path.join(format!("last_reserved_ip.{set}"))
    }
}

impl Stamp {
    /// Returns the modification time of a file or directory.
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self(metadata.mtime(), metadata.mtime_nsec())
    }
}

/// Returns whether `path` is a symbolic link, pipe, socket or device. No IPAM plugin writes a lease
/// to such a file.
fn is_special(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// How far into the past the directory's modification time is set. This is more than a tick of the
/// kernel's clock, and more than the two seconds to which the coarsest file systems round times.
const BACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
