//! Writes files that are complete or absent: each file is written under another name and then
//! renamed.
//!
//! No file is synced to disk. A crash of the machine may lose files. That is harmless, because the
//! crash also ends all sandboxes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::files::{self, Links, if_present};
use tempfile::{Builder, NamedTempFile};

/// A directory for incomplete files. Callers hold the network's lock, so that only one process uses
/// the directory at a time.
#[derive(Debug, Clone)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates a temporary file with `content`. The caller renames it to a path on the same file
    /// system.
    ///
    /// Replaces an incomplete file that a killed process left behind.
    pub fn write(&self, content: &str) -> io::Result<NamedTempFile> {
        let mut builder = Builder::new();
        builder.prefix(NEW).rand_bytes(0);
        let mut file = match builder.tempfile_in(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(self.0.join(NEW))?;
                builder.tempfile_in(&self.0)
            }
            made => made,
        }?;
        file.write_all(content.as_bytes())?;
        Ok(file)
    }

    /// Writes `content` to the file at `path`, which it creates or replaces.
    pub fn replace(&self, path: &Path, content: &str) -> io::Result<()> {
        self.write(content)?
            .persist(path)
            .map_err(|error| error.error)?;
        Ok(())
    }
}

/// Opens a file to lock it or to set its times. Creates the file if it is missing. Refuses a
/// symbolic link. If the file is a pipe, does not wait for a reader.
///
/// On a read-only file system, opens an existing file only for reading, which suffices to lock it:
/// verbs that change no file work there.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match files::open_writable(path, File::options().read(true).create(true)) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            files::open_regular(path, Links::Refuse).map_err(|_| error)
        }
        opened => opened,
    }
}

pub(crate) fn make_directory(path: &Path) -> anyhow::Result<()> {
    files::make_directory(path, 0o755)
        .with_context(|| format!("create directory {}", path.display()))
}

/// Removes a file; a missing one counts as success.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    if_present(fs::remove_file(path)).map(|_| ())
}

const NEW: &str = "new";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_of_a_killed_writer_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let scratch = Scratch(directory.path().to_owned());
        fs::write(directory.path().join(NEW), "half a").unwrap();
        let target = directory.path().join("target");
        for content in ["one", "two"] {
            scratch.replace(&target, content).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
        }
        assert!(!directory.path().join(NEW).exists());
    }
}
