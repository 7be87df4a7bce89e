//! Reads files that another program may have replaced: a pipe does not block the caller, and the
//! size is limited.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

/// What to do with a symbolic link in place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Open the file that the link points to.
    Follow,
    /// Refuse the symbolic link, because no program that writes the file creates such a link.
    Refuse,
}

/// Reads a regular file of at most `largest` bytes.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is larger.
pub fn read_regular(path: &Path, links: Links, largest: u64) -> io::Result<Vec<u8>> {
    let (file, length) = open(path, links)?;
    // The buffer has one byte more than the file. So the first read fetches the whole file, and the
    // second read finds the end of the file without a larger buffer.
    let room = usize::try_from(length.min(largest)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(room + 1);
    file.take(largest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > largest {
        let reason = format!("it is larger than {} MiB", largest >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// Opens a regular file for reading.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    Ok(open(path, links)?.0)
}

/// Returns the file and its length.
fn open(path: &Path, links: Links) -> io::Result<(File, u64)> {
    let flags = match links {
        Links::Follow => OFlag::O_NONBLOCK,
        Links::Refuse => OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW,
    };
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, found.len()))
}

/// Converts the outcome of a file system call: `None` if the path does not exist, or is below a
/// file.
///
/// # Errors
/// All other errors.
pub fn if_present<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}
