//! The client's side of the socket.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use cni::Error;

use crate::lease::Lease;
use crate::wire::{Answer, LARGEST, Request};

#[derive(Debug)]
pub(crate) enum Failure {
    /// No daemon listens on the socket.
    NoDaemon { socket: PathBuf, source: io::Error },
    /// The daemon, or another program on its socket, failed.
    Other(anyhow::Error),
}

impl Failure {
    /// Returns what is wrong, and what to do.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::NoDaemon { socket, source } => format!(
                "no DHCP daemon listens on {}: {source}; start `dhcp daemon`, as \
                 conf-examples/systemd/cni-dhcp.service does",
                socket.display()
            ),
            Self::Other(error) => format!("{error:#}"),
        }
    }
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoDaemon { .. } => Error::TryAgain(failure.text()).into(),
            Failure::Other(error) => error,
        }
    }
}

/// Sends `request` to the daemon and returns the lease in its answer, if it has one.
pub(crate) fn ask(socket: &Path, request: &Request) -> Result<Option<Lease>, Failure> {
    let stream = match UnixStream::connect(socket) {
        Err(source) if ABSENT.contains(&source.kind()) => {
            let socket = socket.to_owned();
            return Err(Failure::NoDaemon { socket, source });
        }
        stream => stream.with_context(|| format!("connect to {}", socket.display())),
    };
    let answer = stream.and_then(|stream| exchange(stream, request, socket));
    answer.map_err(Failure::Other)
}

fn exchange(mut stream: UnixStream, request: &Request, at: &Path) -> anyhow::Result<Option<Lease>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    let mut answer = String::new();
    let sent = stream.write_all(line.as_bytes());
    let read = sent.and_then(|()| stream.take(LARGEST).read_to_string(&mut answer));
    if answer.starts_with("HTTP/") {
        let at = at.display();
        return Err(anyhow!(
            "a DHCP daemon of containernetworking/plugins listens on {at}, which speaks another \
             protocol: stop it, and start `dhcp daemon` of this suite"
        ));
    }
    read.with_context(|| format!("wait for the DHCP daemon on {}", at.display()))?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Lease(lease)) => Ok(Some(lease)),
        Ok(Answer::Done) => Ok(None),
        Ok(Answer::Failed(reason)) => Err(anyhow!("DHCP daemon: {reason}")),
        Err(_) if answer.trim().is_empty() => Err(anyhow!(
            "the DHCP daemon on {} ended during the request",
            at.display()
        )),
        Err(error) => Err(error)
            .with_context(|| format!("read the answer of the program on {}", at.display())),
    }
}

/// Errors of a socket on which no process listens.
const ABSENT: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];

/// Longest silence of a daemon. It sends an empty line every five seconds while it works.
const PATIENCE: Duration = Duration::from_secs(30);
