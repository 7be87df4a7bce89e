//! The client's side of the socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::lease::Lease;
use crate::wire::{Answer, LARGEST, PATIENCE, Request};

/// Why no daemon listens on the socket, and what to do.
pub(crate) type NoDaemon = String;

/// Sends `request` to the daemon and returns the lease in its answer, if it has one.
///
/// # Errors
/// The daemon, or another program on its socket, failed. If none listens, the inner result says so.
pub(crate) fn ask(
    socket: &Path,
    request: &Request,
) -> anyhow::Result<Result<Option<Lease>, NoDaemon>> {
    let at = socket.display();
    match UnixStream::connect(socket) {
        Ok(stream) => exchange(stream, request, socket).map(Ok),
        Err(reason) if ABSENT.contains(&reason.kind()) => Ok(Err(format!(
            "no DHCP daemon listens on {at}: {reason}; start `dhcp daemon`, as \
             conf-examples/systemd/cni-dhcp.service does"
        ))),
        Err(error) => Err(error).with_context(|| format!("connect to {at}")),
    }
}

fn exchange(mut stream: UnixStream, request: &Request, at: &Path) -> anyhow::Result<Option<Lease>> {
    let at = at.display();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = serde_json::to_string(request)? + "\n";
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
    if answer.trim().is_empty() {
        bail!("the DHCP daemon on {at} ended during the request");
    }
    let answer: Answer = serde_json::from_str(&answer)
        .with_context(|| format!("read the answer of the program on {at}"))?;
    answer.map_err(|reason| anyhow::anyhow!("DHCP daemon: {reason}"))
}

/// Errors of a socket on which no process listens.
const ABSENT: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
