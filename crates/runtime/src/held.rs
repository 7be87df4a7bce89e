//! The locked cache entry of an attachment, which can be replaced.
//!
//! Runtimes take no lock and write entries in place. So a replacement compares what it replaces.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::Attachment;
use cni::files::if_present;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry};

/// Who else may hold an entry at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Other processes that only read the entry.
    Shared,
    /// No other process.
    Exclusive,
}

/// The cache entry of an attachment, locked by flock(2) until this value is dropped.
#[derive(Debug)]
pub struct HeldEntry {
    path: PathBuf,
    file: File,
    /// The content of the file.
    bytes: Vec<u8>,
    /// The entry with all its fields.
    document: Value,
    entry: Entry,
}

impl Cache {
    /// Waits for the lock on the entry that [`Self::read`] returns, and reads it; `None` if the
    /// attachment has no entry.
    ///
    /// # Errors
    /// The file exists and cannot be locked or read, or is not an entry.
    pub fn hold(&self, attachment: &Attachment, hold: Hold) -> anyhow::Result<Option<HeldEntry>> {
        for path in self.files(attachment) {
            let locked = if_present(lock(&path, hold));
            let locked = locked.with_context(|| format!("lock {}", path.display()))?;
            if let Some(file) = locked {
                return HeldEntry::read(path, file).map(Some);
            }
        }
        Ok(None)
    }
}

impl HeldEntry {
    fn read(path: PathBuf, mut file: File) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.with_context(|| format!("read {}", path.display()))?;
        let document: Value =
            serde_json::from_slice(&bytes).with_context(|| format!("decode {}", path.display()))?;
        let entry = Entry::from_json(document.clone());
        Ok(Self {
            entry: entry.with_context(|| format!("decode {}", path.display()))?,
            path,
            file,
            bytes,
            document,
        })
    }

    /// Returns the entry.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Sets the values of the capabilities. The file changes only by [`Self::write`].
    ///
    /// # Errors
    /// An old version of libcni wrote the entry, which has no place for them.
    pub fn set_capabilities(&mut self, capabilities: Map<String, Value>) -> anyhow::Result<()> {
        let document = self.document.as_object_mut();
        let document = document.filter(|it| it.contains_key("kind"));
        let document = document.context("its entry in the cache has only a result")?;
        self.entry.arguments.capabilities.clone_from(&capabilities);
        document.insert("capabilityArgs".to_owned(), Value::Object(capabilities));
        Ok(())
    }

    /// Replaces the file of the entry in one step. Its mode and unknown fields stay. Returns `false`
    /// if the entry was deleted meanwhile.
    ///
    /// # Errors
    /// A runtime changed the entry meanwhile; the file cannot be written.
    pub fn write(self) -> anyhow::Result<bool> {
        // A runtime lists the directory of results, so the new file is beside that directory.
        let directory = self.path.parent().and_then(Path::parent);
        let directory = directory.context("the entry has no directory")?;
        // Only the holder of the lock on this inode uses this name.
        let metadata = self.file.metadata()?;
        let new = directory.join(format!(".entry-{}", metadata.ino()));
        let replaced = self.replace_by(&new, metadata.permissions());
        let removed = if_present(fs::remove_file(&new));
        let replaced = replaced.with_context(|| format!("replace {}", self.path.display()))?;
        removed.with_context(|| format!("remove {}", new.display()))?;
        Ok(replaced)
    }

    fn replace_by(&self, new: &Path, mode: Permissions) -> anyhow::Result<bool> {
        let options = &mut File::options();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(new)?;
        file.set_permissions(mode)?;
        file.write_all(self.document.to_string().as_bytes())?;
        file.sync_all()?;
        let exchange = || renameat_with(CWD, new, CWD, &self.path, RenameFlags::EXCHANGE);
        match exchange() {
            Err(rustix::io::Errno::NOENT) => return Ok(false),
            exchanged => exchanged?,
        }
        if fs::read(new)? != self.bytes {
            // A DEL may have removed the entry again.
            exchange().ok();
            bail!("a runtime changed the entry meanwhile");
        }
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(true)
    }
}

/// Opens and locks the file. Starts again if another process replaced the file before this process
/// had the lock.
fn lock(path: &Path, hold: Hold) -> io::Result<File> {
    loop {
        let file = File::open(path)?;
        match hold {
            Hold::Shared => file.lock_shared()?,
            Hold::Exclusive => file.lock()?,
        }
        let identity = |it: Metadata| (it.dev(), it.ino());
        if identity(fs::metadata(path)?) == identity(file.metadata()?) {
            return Ok(file);
        }
    }
}
