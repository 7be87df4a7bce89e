//! Calls to the kubelet over a Unix socket.

use std::path::Path;

use anyhow::anyhow;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Connects to a gRPC server at the path of a Unix socket.
///
/// # Errors
/// The socket is missing, or its owner does not accept the connection.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
    let connected = endpoint.connect().await;
    // Keeps only the root cause, because the errors around it repeat its text.
    connected.map_err(|error| anyhow!("connect: {}", anyhow::Error::from(error).root_cause()))
}

/// Returns what a refusal says. The status as a whole has lines of metadata. The peer chose the
/// text, which becomes a line of the log and of the health page.
pub(crate) fn refusal(status: &Status) -> anyhow::Error {
    let text: String = status.message().chars().take(LONGEST_MESSAGE).collect();
    anyhow!("{}: {}", status.code(), text.escape_debug())
}

/// In characters.
const LONGEST_MESSAGE: usize = 200;
