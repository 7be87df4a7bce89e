//! The lock on a directory that executables are installed into.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::OFlag;

use super::files::with_advice;

/// A locked file in the directory of executables, removed on drop.
///
/// The lock is on a file, because any user that can open the directory could lock the directory
/// itself. Other users cannot open this file.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits until no other installation into `directory` runs, and takes the lock (flock(2)).
    ///
    /// # Errors
    /// The file cannot be created or locked.
    pub fn take(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(NAME);
        let taken = take(&path).with_context(|| format!("lock {}", directory.display()));
        let file = taken.map_err(|error| with_advice(error, directory))?;
        Ok(Self { _file: file, path })
    }
}

impl Drop for Lock {
    /// Deletes the file before it releases the lock. If the file cannot be deleted, it stays, empty
    /// and harmless.
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

/// Creates, opens and locks the file. Starts again if the previous holder of the lock deleted the
/// file before this process had the lock.
fn take(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    loop {
        let file = options.open(path)?;
        file.lock()?;
        let identity = |it: Metadata| (it.dev(), it.ino());
        if fs::symlink_metadata(path).map(identity).ok() == Some(identity(file.metadata()?)) {
            return Ok(file);
        }
    }
}

/// Name of the locked file. It does not have the prefix of temporary files, so `sweep` keeps it.
const NAME: &str = ".cni-install.lock";
