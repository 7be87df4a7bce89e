//! A client of the agent's HTTP server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::DEADLINE;
use crate::open_metrics::Metrics;

/// Requests `path` on a TCP port of this host, and returns the answer with its headers.
///
/// # Errors
/// Nothing listens, or the server closes the connection without an answer.
pub fn get(port: u16, path: &str) -> io::Result<String> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    ask(stream, path)
}

/// Requests `path` on a Unix socket.
///
/// # Errors
/// As [`get`].
pub fn get_by(socket: &Path, path: &str) -> io::Result<String> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    ask(stream, path)
}

fn ask(mut stream: impl Read + Write, path: &str) -> io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the agent's metrics; none before it serves them on port 9799.
pub fn metrics() -> Option<Metrics> {
    let answer = get(9799, "/metrics").ok()?;
    Some(Metrics::parse(answer.split_once("\r\n\r\n")?.1))
}

/// Returns the value of the series that begins with `series` in an answer of `/metrics`.
pub fn value(answer: &str, series: &str) -> Option<u64> {
    let mut lines = answer.lines();
    let rest = lines.find_map(|it| it.strip_prefix(series)?.strip_prefix(' '));
    rest?.parse().ok()
}
