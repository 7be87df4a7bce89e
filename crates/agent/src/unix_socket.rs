//! Unix sockets: the agent's own ones, and those that other processes left behind.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::files::identity;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// The file of a socket on which the agent listens. Dropping this value deletes the file, unless
/// another process has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Starts to listen at `path`, where no file may exist. Only root can connect.
    ///
    /// # Errors
    /// The file exists already. The directory does not allow changes.
    pub fn bind(path: PathBuf) -> io::Result<(UnixListener, Self)> {
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let identity = identity(fs::symlink_metadata(&path));
        Ok((listener, Self { path, identity }))
    }

    /// Moves the file to `path`, and replaces a file there.
    pub fn rename(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// Returns whether the path still leads to this socket.
    pub fn is_there(&self) -> bool {
        self.identity.is_some() && identity(fs::symlink_metadata(&self.path)) == self.identity
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Returns whether no process listens on the Unix socket at `path`. A process that is too busy to
/// accept a connection counts as listening.
pub(crate) async fn is_abandoned(path: &Path) -> bool {
    let connected = timeout(LONGEST_CONNECT, UnixStream::connect(path)).await;
    let gone = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    matches!(connected, Ok(Err(error)) if gone.contains(&error.kind()))
}

/// Maximum time to wait until the owner of the socket accepts a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(1);
