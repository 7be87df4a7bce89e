//! Finds out whether a process still listens on a Unix socket.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;

/// Returns whether no process listens on the Unix socket at `path`. A process that is too busy to
/// accept a connection counts as listening.
pub(crate) async fn is_abandoned(path: &Path) -> bool {
    let connected = timeout(LONGEST_CONNECT, UnixStream::connect(path)).await;
    let gone = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    matches!(connected, Ok(Err(error)) if gone.contains(&error.kind()))
}

/// Maximum time to wait until the owner of the socket accepts a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(1);
