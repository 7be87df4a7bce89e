//! The agent's sockets in the directory of device plugins, and the lock that only one agent at a
//! time can hold.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::files::{identity, if_present};
use tokio::task::AbortHandle;

use super::plugin::Plugin;
use super::resource::OWN;
use super::server;
use crate::unix_socket::{SocketFile, is_abandoned};

/// The agent's lock in the directory of device plugins: only one agent at a time serves there. The
/// lock is a directory, because the kubelet removes all files there when it starts. Its mode is
/// 0700, so only root can open it and take the lock.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    path: PathBuf,
    lock: File,
}

/// Another agent serves in the directory. The text says how that is known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct AlreadyRunning(String);

impl DirectoryLock {
    /// Takes the lock in `directory`. Then removes the sockets that a killed agent left there.
    /// Returns [`AlreadyRunning`] if another process has the lock or listens on such a socket.
    pub async fn take(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(LOCK);
        let lock = open(&path).with_context(|| format!("open {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                bail!(AlreadyRunning(format!(
                    "another cni-agent runs on this node: it has the lock {path}"
                )));
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("lock {}", path.display()))?;
            }
        }
        remove_left(directory).await?;
        Ok(Self { path, lock })
    }

    /// Returns whether the lock directory is still the one that this value locked. Another process
    /// may have removed or replaced it.
    pub fn is_valid(&self) -> bool {
        let named = identity(fs::symlink_metadata(&self.path));
        named.is_some() && named == identity(self.lock.metadata())
    }
}

fn open(lock: &Path) -> io::Result<File> {
    match DirBuilder::new().mode(0o700).create(lock) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => File::open(lock),
    }
}

/// Removes the sockets that killed agents left in `directory`. The caller guarantees that it has
/// the lock of the directory and serves no socket there yet. Another agent needs the lock, too, so
/// no process should listen on these sockets. Returns [`AlreadyRunning`] if one does.
async fn remove_left(directory: &Path) -> anyhow::Result<()> {
    for path in own_sockets(directory).with_context(|| format!("read {}", directory.display()))? {
        if !is_abandoned(&path).await {
            bail!(AlreadyRunning(format!(
                "another process serves {}",
                path.display()
            )));
        }
        let removed = if_present(fs::remove_file(&path));
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

fn own_sockets(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_socket = entry.file_type().is_ok_and(|it| it.is_socket());
        if is_socket && entry.file_name().to_string_lossy().starts_with(OWN) {
            sockets.push(entry.path());
        }
    }
    Ok(sockets)
}

/// A socket on which the agent serves a plugin. Dropping this value deletes the socket's file, but
/// open connections stay.
#[derive(Debug)]
pub(crate) struct Socket {
    file: SocketFile,
    server: AbortHandle,
}

impl Socket {
    /// Creates the socket of the device plugin in `directory` and starts a task that serves it.
    ///
    /// # Errors
    /// The socket's file exists already. The directory does not allow changes.
    pub fn serve(directory: &Path, plugin: &Plugin) -> io::Result<Self> {
        let (listener, file) = SocketFile::bind(directory.join(plugin.resource.socket_name()))?;
        let server = tokio::spawn(server::serve(listener, plugin.clone())).abort_handle();
        Ok(Self { file, server })
    }

    /// Returns whether the directory still has the socket, and the agent serves it.
    pub fn is_served(&self) -> bool {
        self.file.is_there() && !self.server.is_finished()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const LOCK: &str = "cni-agent.lock";
