//! The lock on a directory that executables are installed into.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cni::files::{Hold, lock};
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
    /// `room` is for [`with_advice`].
    ///
    /// # Errors
    /// The file cannot be created or locked, or another process holds the lock for [`PATIENCE`].
    pub fn take(directory: &Path, room: u64) -> anyhow::Result<Self> {
        let path = directory.join(NAME);
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options
                .mode(0o600)
                .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
            options.open(path)
        };
        let action = || format!("lock {}", directory.display());
        let taken = lock(&path, open, Hold::Exclusive, PATIENCE).with_context(action);
        let file = taken.map_err(|error| with_advice(error, directory, room))?;
        let file = file.context("another installation has had the lock for an hour");
        let file = file.with_context(action)?;
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

/// Name of the locked file. It does not have the prefix of temporary files, so an installation that
/// deletes old temporary files keeps it.
const NAME: &str = ".cni-install.lock";

/// Longest wait for another installation, which takes seconds.
const PATIENCE: Duration = Duration::from_hours(1);
