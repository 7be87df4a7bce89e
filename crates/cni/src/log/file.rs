//! The file that lines are appended to: opened each time, so that it may be rotated away at any time.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Appends `line` by one write(2), which with `O_APPEND` no other writer comes between. A file that is
/// made is its owner's alone, since a log tells what runs on a host.
///
/// # Errors
/// It cannot be opened or written, or is a link, a pipe, a device: somebody else put that there.
pub(super) fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits())
        .open(path);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(LINK) => io::Error::other("it is a symbolic link"),
        Some(NO_READER) => io::Error::other("it is no regular file"),
        _ => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let written = file.write(line)?;
    if written < line.len() {
        let reason = format!("it took {written} of {} bytes", line.len());
        return Err(io::Error::other(reason));
    }
    Ok(())
}

/// Of `O_NOFOLLOW`: open(2).
const LINK: i32 = Errno::ELOOP as i32;

/// Of a pipe that nobody reads, and of a socket: open(2).
const NO_READER: i32 = Errno::ENXIO as i32;
