//! Listens on a TCP port or a Unix socket.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use cni::files::if_present;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::sleep;

use super::address::Address;
use crate::unix_socket::{SocketFile, is_abandoned};

/// The socket on which the HTTP server listens.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listener {
    /// Starts to listen at `address`. Replaces a socket file on which no process listens.
    ///
    /// # Errors
    /// Another process listens at this address, or the path is a file that is no socket.
    pub async fn bind(address: &Address) -> anyhow::Result<Self> {
        match address {
            Address::Tcp(tcp) => Ok(Self::Tcp(TcpListener::bind(tcp).await?)),
            Address::Unix(path) => {
                remove_stale(path).await?;
                Self::bind_unix(path)
            }
        }
    }

    /// Creates the socket under a temporary name, sets its permissions and then renames it. So the
    /// socket never exists under its own name with other permissions.
    fn bind_unix(path: &Path) -> anyhow::Result<Self> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        if_present(fs::remove_file(&new)).with_context(|| format!("remove {}", new.display()))?;
        let (listener, mut file) = SocketFile::bind(new)?;
        file.rename(path)?;
        Ok(Self::Unix {
            listener,
            _file: file,
        })
    }

    /// Waits for a connection. Tries again if no file descriptor is free, or if a client gave up.
    ///
    /// # Errors
    /// The kernel reports that the socket does not listen.
    pub async fn accept(&self) -> anyhow::Result<Box<dyn Stream>> {
        loop {
            let accepted: io::Result<Box<dyn Stream>> = match self {
                Self::Tcp(listener) => listener.accept().await.map(|it| Box::new(it.0) as _),
                Self::Unix { listener, .. } => {
                    listener.accept().await.map(|it| Box::new(it.0) as _)
                }
            };
            match accepted {
                Ok(stream) => return Ok(stream),
                Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error.into()),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// Removes a socket file on which no process listens. Does nothing if the file is missing. Fails if
/// a process listens, or if the file is no socket.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let Some(metadata) = if_present(fs::symlink_metadata(path))? else {
        return Ok(());
    };
    let (is_socket, shown) = (metadata.file_type().is_socket(), path.display());
    ensure!(
        is_socket,
        "{shown} exists and is no socket; remove it, or set listen to another path"
    );
    let is_abandoned = is_abandoned(path).await;
    ensure!(is_abandoned, "another process listens on {shown}");
    Ok(fs::remove_file(path)?)
}

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
