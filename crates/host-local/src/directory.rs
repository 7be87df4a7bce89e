//! The leases of one network on disk, in the format of the reference.
//!
//! `<dataDir>/<network>/<address>` says who holds an address and `last_reserved_ip.<n>`
//! which one range set `n` gave last. Nothing else may lie there, since the reference reads
//! every file: what is being written stands elsewhere until it is whole. Knows nothing of
//! locks; every change is made by whoever holds the one of the directory.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::lease::{Holder, Lease};
use crate::read;
use crate::scratch::Scratch;

/// The directory of a network's leases.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    scratch: Scratch,
    watch: Cell<Watch>,
}

/// What is known of changes by others.
///
/// Whoever adds or removes a file moves the directory's time of modification to the
/// present. After each change of ours it is dated back, so as long as it bears that date
/// nobody else changed anything. The present itself would prove nothing: the kernel's clock
/// stands still for milliseconds, in which others write, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Nobody looked.
    Off,
    /// The date that the directory bore after our last change, or when the watch began.
    Since(Stamp),
    /// Somebody else changed something, or the directory could not be dated.
    Disturbed,
}

/// Whether an address was still to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reservation {
    /// It is ours now.
    Made,
    /// Somebody else was quicker.
    Taken,
}

/// What a lease's file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Who holds the address.
    Holder(Holder),
    /// Nothing: whoever made the file was killed before they wrote it.
    Empty,
    /// Something that names no holder.
    Garbled,
}

/// A point in time as the file system keeps it: seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Stamp(i64, i64);

/// What tells a file from another one that bears its name later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    inode: u64,
    ctime: Stamp,
}

impl Directory {
    /// The directory at `path`, whose files stand in `scratch` until they are whole, or
    /// beside the others where that is another file system.
    pub fn new(path: PathBuf, scratch: Scratch) -> Self {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let scratch = match (device(&path), device(&scratch.0)) {
            (Some(own), Some(aside)) if own != aside => Scratch(path.clone()),
            _ => scratch,
        };
        Self {
            path,
            scratch,
            watch: Cell::new(Watch::Off),
        }
    }

    /// It is there, whether or not it can be looked into.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Every address that a file is named after, whatever it holds.
    pub fn addresses(&self) -> anyhow::Result<Vec<IpAddr>> {
        let action = || format!("read directory {}", self.path.display());
        let mut addresses = Vec::new();
        for entry in fs::read_dir(&self.path).with_context(action)? {
            let name = entry.with_context(action)?.file_name();
            addresses.extend(name.to_str().and_then(|name| name.parse::<IpAddr>().ok()));
        }
        Ok(addresses)
    }

    /// What the file of `address` says, if there is one.
    pub fn content(&self, address: IpAddr) -> anyhow::Result<Option<Content>> {
        let path = self.file(address);
        let bytes = match read::own(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(_) if is_of_no_use(&path) => return Ok(Some(Content::Garbled)),
            bytes => bytes.with_context(|| format!("read lease {}", path.display()))?,
        };
        Ok(Some(match Holder::parse(&bytes) {
            Some(holder) => Content::Holder(holder),
            None if bytes.trim_ascii().is_empty() => Content::Empty,
            None => Content::Garbled,
        }))
    }

    /// The lease of `address`, if there is one that names its holder.
    pub fn lease(&self, address: IpAddr) -> anyhow::Result<Option<Lease>> {
        Ok(match self.content(address)? {
            Some(Content::Holder(holder)) => Some(Lease { address, holder }),
            _ => None,
        })
    }

    /// Writes the file of `lease`, unless there is one. It is whole or absent, whatever
    /// happens meanwhile.
    pub fn create(&self, lease: &Lease) -> anyhow::Result<Reservation> {
        let path = self.file(lease.address);
        let action = || format!("write lease {}", path.display());
        let content = lease.holder.content();
        let file = self.scratch.write(&content).with_context(action)?;
        match self.change(|| file.persist_noclobber(&path)) {
            Ok(_) => Ok(Reservation::Made),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(Reservation::Taken)
            }
            Err(error) => Err(error.error).with_context(action),
        }
    }

    /// Removes the files of `addresses` and returns an outcome for each, in their order. A missing file is success.
    ///
    /// All of them are one change, so the directory is dated back once.
    pub fn remove(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<anyhow::Result<()>> {
        let remove = |address| {
            let path = self.file(address);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("remove lease {}", path.display()))
                }
                _ => Ok(()),
            }
        };
        self.change(|| addresses.into_iter().map(remove).collect())
    }

    /// Which file bears the name of `address`, if one does.
    pub fn identity(&self, address: IpAddr) -> anyhow::Result<Option<Identity>> {
        let path = self.file(address);
        match fs::symlink_metadata(&path) {
            Ok(metadata) => Ok(Some(Identity {
                inode: metadata.ino(),
                ctime: Stamp(metadata.ctime(), metadata.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("look at lease {}", path.display())),
        }
    }

    /// The address that range set `set` gave last; `None` where that is unknown.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let bytes = read::own(&self.last_reserved_file(set)).ok()?;
        str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }

    /// Remembers the address that range set `set` gave last.
    pub fn set_last_reserved(&self, set: usize, address: IpAddr) -> anyhow::Result<()> {
        let path = self.last_reserved_file(set);
        let replace = || self.scratch.replace(&path, &address.to_string());
        let written = self.change(replace);
        written.with_context(|| format!("write {}", path.display()))
    }

    /// From now on changes by others are noticed.
    pub fn watch(&self) {
        let date = self.date_back();
        self.watch.set(date.map_or(Watch::Disturbed, Watch::Since));
    }

    /// Takes the watch up where it was left, with this date; says whether nobody changed
    /// anything meanwhile.
    pub fn resume_watch(&self, date: Stamp) -> bool {
        let is_undisturbed = self.date().is_ok_and(|now| now == date);
        if is_undisturbed {
            self.watch.set(Watch::Since(date));
        }
        is_undisturbed
    }

    /// The date by which changes by others will be noticed, if there were none so far.
    pub fn undisturbed_since(&self) -> Option<Stamp> {
        let Watch::Since(date) = self.watch.get() else {
            return None;
        };
        self.date().ok().filter(|now| *now == date)
    }

    /// Makes a change, and dates the directory back so that those of others show.
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let before = self.undisturbed_since();
        let outcome = change();
        if self.watch.get() != Watch::Off {
            let date = before.and_then(|_| self.date_back().ok());
            self.watch.set(date.map_or(Watch::Disturbed, Watch::Since));
        }
        outcome
    }

    fn date(&self) -> io::Result<Stamp> {
        fs::metadata(&self.path).map(|metadata| Stamp::of(&metadata))
    }

    fn date_back(&self) -> io::Result<Stamp> {
        let past = SystemTime::now().checked_sub(BACK);
        let past = past.unwrap_or(SystemTime::UNIX_EPOCH);
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
    /// When the file or directory was modified.
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self(metadata.mtime(), metadata.mtime_nsec())
    }
}

/// A link, a pipe, a device: nobody made it who leases addresses.
fn is_of_no_use(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Longer than any clock stands still, and than the two seconds of the coarsest file system.
const BACK: Duration = Duration::from_secs(10);

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
