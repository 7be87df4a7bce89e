//! Reads files that another program may have replaced: a pipe does not block the caller, and the
//! size is limited.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use nix::fcntl::OFlag;

/// Reads a file that this plugin or the reference writes. Refuses a symbolic link, because neither
/// of them creates one.
///
/// # Errors
/// The file cannot be read, is a symbolic link or another special file, or exceeds 1 MiB.
pub(crate) fn own(path: &Path) -> io::Result<Vec<u8>> {
    read(path, OFlag::O_NOFOLLOW)
}

/// Reads the text of a file that the configuration names. Follows symbolic links.
///
/// # Errors
/// The file cannot be read, is not a regular file, exceeds 1 MiB, or is not UTF-8.
pub(crate) fn named(path: &Path) -> io::Result<String> {
    let bytes = read(path, OFlag::empty())?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Returns the names in a directory; an empty list if the directory does not exist.
pub(crate) fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let action = || format!("read directory {}", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(error) if MISSING.contains(&error.kind()) => return Ok(Vec::new()),
        entries => entries.with_context(action)?,
    };
    let names = entries.map(|entry| {
        let name = entry.with_context(action)?.file_name();
        Ok(name.to_string_lossy().into_owned())
    });
    names.collect()
}

/// Converts the outcome of a file system call: `Ok(None)` if the path does not exist.
pub(crate) fn existing<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

fn read(path: &Path, flags: OFlag) -> io::Result<Vec<u8>> {
    let flags = (flags | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // With one spare byte, the first read fetches the whole file, and the second finds its end
    // without a larger buffer.
    let room = usize::try_from(found.len().min(LARGEST)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(room + 1);
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        let reason = format!("it is larger than {} MiB", LARGEST >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

const MISSING: [ErrorKind; 2] = [ErrorKind::NotFound, ErrorKind::NotADirectory];

/// Size limit in bytes, far above the size of the files that this module reads.
const LARGEST: u64 = 1 << 20;
