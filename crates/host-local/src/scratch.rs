//! Files that are complete or absent: each is written under another name and then renamed.
//!
//! No file is synced: a crash of the machine that loses a file also ends all sandboxes.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::read::existing;

/// A directory for incomplete files; one process at a time uses it.
#[derive(Debug, Clone)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates a temporary file with this content, to be renamed on the same file system.
    ///
    /// Replaces the incomplete file of a writer that was killed.
    pub fn write(&self, content: &str) -> io::Result<NamedTempFile> {
        let make = || {
            Builder::new()
                .prefix(NEW)
                .rand_bytes(0)
                .tempfile_in(&self.0)
        };
        let mut file = match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(self.0.join(NEW))?;
                make()
            }
            other => other,
        }?;
        file.write_all(content.as_bytes())?;
        Ok(file)
    }

    /// Replaces the file at `path` by one with this content, or creates it.
    pub fn replace(&self, path: &Path, content: &str) -> io::Result<()> {
        self.write(content)?
            .persist(path)
            .map_err(|error| error.error)?;
        Ok(())
    }
}

/// Creates a directory and its parents.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Removes a file; a missing one counts as success.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    existing(fs::remove_file(path)).map(|_| ())
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
