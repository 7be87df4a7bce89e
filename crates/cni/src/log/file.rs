//! The log file, opened for each line so that another program may rotate it at any time.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use nix::errno::Errno;

use crate::files::open_writable;

/// Appends `line` by one write(2), which `O_APPEND` makes atomic. A new file is readable only by
/// its owner, because a log describes what runs on a host.
///
/// # Errors
/// The file cannot be opened, does not take the whole line, or is not a regular file. A symbolic
/// link is an error, too.
pub(super) fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let opened = open_writable(path, File::options().append(true).create(true));
    let errno = |error: &io::Error| error.raw_os_error().map(Errno::from_raw);
    let mut file = opened.map_err(|error| match errno(&error) {
        Some(Errno::ELOOP) => io::Error::other("it is a symbolic link"),
        // open(2) returns this error for a pipe without a reader and for a socket.
        Some(Errno::ENXIO) => io::Error::other("it is no regular file"),
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
