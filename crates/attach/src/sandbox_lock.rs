//! A lock on a sandbox, for changes that the kernel cannot make in one step, such as the choice of a
//! free routing table, or the deletion of a VRF that no interface uses.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cni::files::{self, Hold, lock, make_directory, open_writable};
use cni::{Error, note_failure};
use netns::Netns;

/// The lock (flock(2)). Dropping this value removes the lock's file and releases the lock.
///
/// Only root can open the file. A process in the sandbox could lock the file of the namespace itself.
/// A killed plugin leaves an empty file, which the next plugin in the sandbox removes.
#[derive(Debug)]
pub struct SandboxLock {
    path: PathBuf,
    /// Its lock ends when the file is closed.
    _file: File,
}

impl SandboxLock {
    /// Waits until no other plugin has the lock.
    ///
    /// # Errors
    /// - Code 11: another plugin has had it for 20 seconds.
    /// - The file cannot be written.
    pub fn take(namespace: &Netns) -> anyhow::Result<Self> {
        let file = namespace.as_fd().try_clone_to_owned().map(File::from);
        let inode = file.and_then(|it| it.metadata());
        let inode = inode.context("read the inode of the sandbox")?.ino();
        let path = Path::new(DIRECTORY).join(inode.to_string());
        let open = |path: &Path| {
            make_directory(Path::new(PARENT), 0o755)?;
            make_directory(Path::new(DIRECTORY), 0o700)?;
            open_writable(path, File::options().create(true))
        };
        let action = || format!("lock the sandbox by {}", path.display());
        let taken = lock(&path, open, Hold::Exclusive, PATIENCE).with_context(action)?;
        let kept = || Error::TryAgain("another plugin has had the lock for 20 s".to_owned());
        let file = taken.ok_or_else(kept).with_context(action)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for SandboxLock {
    fn drop(&mut self) {
        note_failure(files::remove(&self.path));
    }
}

/// The directory of all records, which other users may read.
const PARENT: &str = "/run/cni";
const DIRECTORY: &str = "/run/cni/lock";

const PATIENCE: Duration = Duration::from_secs(20);
