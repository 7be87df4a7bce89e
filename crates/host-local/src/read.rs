//! Reads files and directories of the plugin, and files that the configuration names.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::Context as _;
use cni::files::{Links, if_present, read_regular};

/// Reads a file that this plugin or the Go plugin `host-local` writes. Refuses a symbolic link,
/// because neither plugin creates one.
///
/// # Errors
/// The file cannot be read, is not a regular file, or exceeds 1 MiB.
pub(crate) fn own(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, Links::Refuse, LARGEST)
}

/// Reads the text of a file that the configuration names. Follows symbolic links.
///
/// # Errors
/// The file cannot be read, is not a regular file, exceeds 1 MiB, or is not UTF-8.
pub(crate) fn named(path: &Path) -> io::Result<String> {
    let bytes = read_regular(path, Links::Follow, LARGEST)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Returns the names of all files in a directory; an empty list if the directory does not exist.
pub(crate) fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let action = || format!("read directory {}", directory.display());
    let entries = if_present(fs::read_dir(directory)).with_context(action)?;
    let names = entries.into_iter().flatten().map(|entry| {
        let name = entry.with_context(action)?.file_name();
        Ok(name.to_string_lossy().into_owned())
    });
    names.collect()
}

/// Size limit in bytes, far above the size of the files that this module reads.
const LARGEST: u64 = 1 << 20;
