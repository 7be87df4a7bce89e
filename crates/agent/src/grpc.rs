//! Calls to the kubelet and to container runtimes: gRPC over a Unix socket.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Connects to a gRPC server at the path of a Unix socket.
///
/// # Errors
/// The socket is missing, or its owner does not accept the connection.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let connected = endpoint.connect_timeout(LONGEST_CONNECT).connect().await;
    // Keeps only the root cause, because the errors around it repeat its text.
    connected.map_err(|error| anyhow!("connect: {}", anyhow::Error::from(error).root_cause()))
}

/// Returns an error with the code and the text of `status`, without its metadata. The text becomes
/// a line of the log and of `/healthz`. The peer chose the text, so this function limits its length
/// and escapes control characters.
pub(crate) fn refusal(status: &Status) -> anyhow::Error {
    let text: String = status.message().chars().take(LONGEST_MESSAGE).collect();
    anyhow!("{}: {}", status.code(), text.escape_debug())
}

/// Maximum time to wait until the owner of the socket accepts the connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(5);

/// Maximum length of the peer's error text in characters.
const LONGEST_MESSAGE: usize = 200;
