//! Locks the cache entry of an attachment, and replaces it.
//!
//! Runtimes take no lock and write entries in place, so a runtime may write an entry after this
//! module has read it. [`Replacement::exchange`] therefore compares the replaced file with the
//! content that this module read, and restores the replaced file if they differ.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cni::files::{self, Hold, Links, if_present, lock, open_regular, open_writable};
use cni::{Attachment, note};
use rustix::fs::{AtFlags, CWD, RenameFlags, StatxFlags, renameat_with, statx};
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry};

/// The cache entry of an attachment, locked by flock(2) until this value is dropped.
#[derive(Debug)]
pub struct HeldEntry {
    path: PathBuf,
    file: File,
    /// The content of the file when it was read.
    bytes: Vec<u8>,
    /// The entry with all fields of the file, even those that this crate does not know.
    document: Value,
    /// The entry that was read from the file.
    pub entry: Entry,
}

impl Cache {
    /// Waits for the lock on the entry that [`Self::read`] would return. Then reads the entry and
    /// returns it with the lock; `None` if the attachment has no entry.
    ///
    /// # Errors
    /// Another process keeps the lock for longer than this function waits. Or the entry's file
    /// cannot be locked or read, or is not an entry.
    pub fn hold(&self, attachment: &Attachment, hold: Hold) -> anyhow::Result<Option<HeldEntry>> {
        let timeout = match hold {
            Hold::Shared => PATIENCE_OF_READERS,
            Hold::Exclusive => PATIENCE,
        };
        let open = |path: &Path| open_regular(path, Links::Follow);
        for path in self.files(attachment) {
            let locked = if_present(lock(&path, open, hold, timeout));
            let locked = locked.with_context(|| format!("lock {}", path.display()))?;
            if let Some(file) = locked {
                let kept = || {
                    let path = path.display();
                    format!("another process has had the lock on {path} for more than {timeout:?}")
                };
                let file = file.with_context(kept)?;
                return HeldEntry::read(path, file).map(Some);
            }
        }
        Ok(None)
    }
}

impl HeldEntry {
    fn read(path: PathBuf, file: File) -> anyhow::Result<Self> {
        let read = files::read_opened(&file);
        let bytes = read.with_context(|| format!("read {}", path.display()))?;
        let decode = |document: Value| Ok((Entry::from_json(document.clone())?, document));
        let decoded = serde_json::from_slice(&bytes).and_then(decode);
        let (entry, document) = decoded.with_context(|| format!("decode {}", path.display()))?;
        Ok(Self {
            path,
            file,
            bytes,
            document,
            entry,
        })
    }

    /// Writes a copy of this entry to a new file, with `capabilities` as the values of its
    /// capabilities (`capabilityArgs`). [`Replacement::exchange`] then replaces the entry by this
    /// file.
    ///
    /// # Errors
    /// An old version of libcni wrote the entry, so it contains only a result. Or the new file
    /// cannot be written, or is on another mount than the entry, so that the kernel cannot exchange
    /// the two.
    pub fn prepare(mut self, capabilities: Map<String, Value>) -> anyhow::Result<Replacement> {
        let document = self.document.as_object_mut();
        let document = document.filter(|it| it.contains_key("kind"));
        let document = document.context("its entry in the cache has only a result")?;
        self.entry.arguments.capabilities.clone_from(&capabilities);
        document.insert("capabilityArgs".to_owned(), Value::Object(capabilities));
        // The new file is outside the directory of results, because a runtime may take every file
        // in that directory for an entry.
        let directory = self.path.parent().and_then(Path::parent);
        let directory = directory.context("the entry has no directory")?;
        // Only the process that has locked this inode uses this name.
        let new = directory.join(format!(".entry-{}", self.file.metadata()?.ino()));
        let action = format!("write {}", new.display());
        let replacement = Replacement { held: self, new };
        replacement.write().context(action)?;
        Ok(replacement)
    }
}

/// A new file that is to replace a cache entry. Dropping this value deletes the new file or, after
/// [`Self::exchange`], the replaced file.
#[derive(Debug)]
pub struct Replacement {
    held: HeldEntry,
    new: PathBuf,
}

impl Replacement {
    /// Returns the entry in the new file.
    pub fn entry(&self) -> &Entry {
        &self.held.entry
    }

    /// Writes the new file, with the owner, the mode and the time of the old file, which shows when
    /// ADD ran, and with all fields of the entry, even those that this crate does not know.
    fn write(&self) -> anyhow::Result<()> {
        // A process that was killed while it had the lock on the entry may have left a file with
        // this name.
        if_present(fs::remove_file(&self.new))?;
        let mut file = open_writable(&self.new, File::options().create_new(true))?;
        let old = &self.held.file;
        ensure!(
            mount_of(&file)? == mount_of(old)?,
            "the directory of results is a mount of its own, so its files cannot be exchanged"
        );
        let metadata = old.metadata()?;
        fchown(&file, Some(metadata.uid()), Some(metadata.gid()))?;
        file.set_permissions(metadata.permissions())?;
        file.write_all(self.held.document.to_string().as_bytes())?;
        file.set_modified(metadata.modified()?)?;
        Ok(file.sync_all()?)
    }

    /// Exchanges the entry with the new file in one step, so that the entry exists at every moment.
    /// Returns `false` and changes nothing if the entry was deleted after it was read.
    ///
    /// # Errors
    /// A runtime changed the entry after it was read; the function then restores the changed entry.
    /// Or the kernel refuses the exchange, or a file or directory cannot be read or synced.
    pub fn exchange(self) -> anyhow::Result<bool> {
        let path = &self.held.path;
        let exchange = || renameat_with(CWD, &self.new, CWD, path, RenameFlags::EXCHANGE);
        match exchange() {
            Err(rustix::io::Errno::NOENT) => return Ok(false),
            exchanged => exchanged.with_context(|| format!("replace {}", path.display()))?,
        }
        if files::read(&self.new)? != self.held.bytes {
            // Exchanges the two files back. If this fails because a DEL has removed the entry
            // meanwhile, there is nothing to restore.
            exchange().ok();
            bail!("a runtime changed {} meanwhile", path.display());
        }
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(true)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.new)
            && self.new.exists()
        {
            note!("remove {}: {error}", self.new.display());
        }
    }
}

/// Returns the ID of the mount that `file` was opened in.
fn mount_of(file: &File) -> io::Result<u64> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// Longest wait for an exclusive lock, to change the entry. The process that has the lock may wait
/// up to 30 s for a plugin that it has called with RELOAD, a verb of this suite.
const PATIENCE: Duration = Duration::from_secs(35);

/// Longest wait for a shared lock, to read the entry. It is short, because the caller
/// (`upkeep::reload`) also has to restore the rules of other attachments.
const PATIENCE_OF_READERS: Duration = Duration::from_secs(5);
