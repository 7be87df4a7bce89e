//! The leases of one network on disk, in the format of the reference.
//!
//! The file `<dataDir>/<network>/<address>` contains the holder of an address.
//! `last_reserved_ip.<n>` contains the last address that range set `n` provided. Other files must
//! not exist there, since the reference reads every file. So incomplete files are written
//! elsewhere. This module does not lock; its callers hold the directory's lock for every change.

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

/// Knowledge of changes by other programs.
///
/// Adding or removing a file sets the directory's modification time to the present. After each own
/// change the plugin dates the directory back. As long as it has that date, no other program has
/// changed it. The present time would prove nothing: the kernel's clock stands still for
/// milliseconds, in which other programs may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// The directory is not watched.
    Off,
    /// The directory's date after the last own change, or at the start of the watch.
    Since(Stamp),
    /// Another program changed the directory, or dating it back failed.
    Disturbed,
}

/// Outcome of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// The address is leased.
    Made,
    /// Another holder has the address.
    Taken,
}

/// Content of a lease's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The holder of the address.
    Holder(Holder),
    /// Nothing: its writer was killed before it wrote the holder.
    Empty,
    /// Text without a valid holder.
    Garbled,
}

/// A time as the file system stores it: seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp(i64, i64);

/// Identity of a file: a later file with the same name has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    inode: u64,
    ctime: Stamp,
}

impl Directory {
    /// Opens the directory at `path`. Incomplete files go to `scratch`, or to `path` if that is on
    /// another file system.
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

    /// Returns whether the directory exists, even if it is not readable.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Returns every address with a file, whatever the file contains.
    pub fn addresses(&self) -> anyhow::Result<Vec<IpAddr>> {
        let action = || format!("read directory {}", self.path.display());
        let mut addresses = Vec::new();
        for entry in fs::read_dir(&self.path).with_context(action)? {
            let name = entry.with_context(action)?.file_name();
            addresses.extend(name.to_str().and_then(|name| name.parse::<IpAddr>().ok()));
        }
        Ok(addresses)
    }

    /// Returns the content of the file of `address`, if the file exists.
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

    /// Returns the holder of `address`, if its file names one.
    pub fn holder(&self, address: IpAddr) -> anyhow::Result<Option<Holder>> {
        Ok(match self.content(address)? {
            Some(Content::Holder(holder)) => Some(holder),
            _ => None,
        })
    }

    /// Writes the file of `lease` unless it exists. The file is complete or absent even after a
    /// crash.
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

    /// Removes the files of `addresses` and returns an outcome for each, in their order. A missing
    /// file counts as success.
    ///
    /// All removals are one change, so the directory is dated back once.
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

    /// Returns the identity of the file of `address`, if it exists.
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

    /// Returns the last address that range set `set` provided; `None` if unknown.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let bytes = read::own(&self.last_reserved_file(set)).ok()?;
        str::from_utf8(&bytes).ok()?.trim().parse().ok()
    }

    /// Remembers the last address that range set `set` provided.
    pub fn set_last_reserved(&self, set: usize, address: IpAddr) -> anyhow::Result<()> {
        let path = self.last_reserved_file(set);
        let replace = || self.scratch.replace(&path, &address.to_string());
        let written = self.change(replace);
        written.with_context(|| format!("write {}", path.display()))
    }

    /// Starts to watch for changes by other programs.
    pub fn watch(&self) {
        let date = self.date_back();
        self.watch.set(date.map_or(Watch::Disturbed, Watch::Since));
    }

    /// Resumes the watch that had this date. Returns whether no other program changed the directory
    /// meanwhile.
    pub fn resume_watch(&self, date: Stamp) -> bool {
        let is_undisturbed = self.date().is_ok_and(|now| now == date);
        if is_undisturbed {
            self.watch.set(Watch::Since(date));
        }
        is_undisturbed
    }

    /// Returns the watch's date, if no other program changed the directory so far.
    pub fn undisturbed_since(&self) -> Option<Stamp> {
        let Watch::Since(date) = self.watch.get() else {
            return None;
        };
        self.date().ok().filter(|now| *now == date)
    }

    /// Makes a change and dates the directory back, so later changes by other programs show.
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
    /// Returns the modification time of a file or directory.
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self(metadata.mtime(), metadata.mtime_nsec())
    }
}

/// Returns whether a link, pipe or device is in the place of a lease; IPAM plugins never create
/// one.
fn is_of_no_use(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Longer than a tick of any clock, and than the two seconds of the coarsest file system.
const BACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
