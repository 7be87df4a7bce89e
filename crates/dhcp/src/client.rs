//! The client's side of the socket.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};

use crate::lease::Lease;
use crate::wire::{Answer, LARGEST, PATIENCE, Request};

/// No daemon listens on the socket.
#[derive(Debug, thiserror::Error)]
#[error(
    "no DHCP daemon listens on {}: {reason}; start `dhcp daemon`, as \
     conf-examples/systemd/cni-dhcp.service does",
    socket.display()
)]
pub(crate) struct NoDaemon {
    socket: PathBuf,
    reason: io::Error,
}

/// Sends `request` to the daemon and returns the lease in its answer, if it has one.
///
/// # Errors
/// [`NoDaemon`], or the daemon, or another program on its socket, failed.
pub(crate) fn ask(socket: &Path, request: &Request) -> anyhow::Result<Option<Lease>> {
    let stream = match UnixStream::connect(socket) {
        Err(reason) if ABSENT.contains(&reason.kind()) => {
            let socket = socket.to_owned();
            bail!(NoDaemon { socket, reason });
        }
        stream => stream.with_context(|| format!("connect to {}", socket.display()))?,
    };
    exchange(stream, request, socket)
}

/// Returns that no daemon listens; `None` if one has answered. Other errors stay errors.
pub(crate) fn absence(answer: anyhow::Result<Option<Lease>>) -> anyhow::Result<Option<NoDaemon>> {
    answer.map_or_else(|error| error.downcast().map(Some), |_| Ok(None))
}

fn exchange(mut stream: UnixStream, request: &Request, at: &Path) -> anyhow::Result<Option<Lease>> {
    let at = at.display();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    let mut answer = String::new();
    let sent = stream.write_all(line.as_bytes());
    let read = sent.and_then(|()| stream.take(LARGEST).read_to_string(&mut answer));
    if answer.starts_with("HTTP/") {
        bail!(
            "a DHCP daemon of containernetworking/plugins listens on {at}, which speaks another \
             protocol: stop it, and start `dhcp daemon` of this suite"
        );
    }
    read.with_context(|| format!("wait for the DHCP daemon on {at}"))?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Lease(lease)) => Ok(Some(lease)),
        Ok(Answer::Done) => Ok(None),
        Ok(Answer::Failed(reason)) => Err(anyhow!("DHCP daemon: {reason}")),
        Err(_) if answer.trim().is_empty() => {
            bail!("the DHCP daemon on {at} ended during the request")
        }
        Err(error) => Err(error).with_context(|| format!("read the answer of the program on {at}")),
    }
}

/// Errors of a socket on which no process listens.
const ABSENT: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
