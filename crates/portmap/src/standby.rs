//! The standby list: attachments that want a port which another attachment of their container
//! serves.
//!
//! Each has an empty file, named like its record, in a directory of their own. A node without such
//! attachments has no such directory, so DEL needs one system call to find that none takes over.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use cni::note;

use crate::record::{self, file_name, owner_of};

/// The directory of the standby list.
#[derive(Debug)]
pub(crate) struct Standby(PathBuf);

impl Default for Standby {
    fn default() -> Self {
        Self(PathBuf::from(record::DIRECTORY).join("standby"))
    }
}

impl Standby {
    /// Returns the owners on standby, sorted. A directory that cannot be read is logged and counts
    /// as empty, because DEL removes its own elements in any case.
    pub fn owners(&self) -> Vec<String> {
        self.read().unwrap_or_else(|error| {
            note(format_args!("read {}: {error}", self.0.display()));
            Vec::new()
        })
    }

    /// Adds `owner`, which must have a record.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn join(&self, owner: &str) -> anyhow::Result<()> {
        let path = self.0.join(file_name(owner));
        let join = || {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o755).create(&self.0)?;
            File::create(&path)
        };
        let joined = (0..ATTEMPTS).map(|_| join()).find(|it| !is_not_found(it));
        let joined = joined.unwrap_or_else(|| Err(ErrorKind::NotFound.into()));
        joined.with_context(|| format!("create {}", path.display()))?;
        Ok(())
    }

    /// Removes `owner`, and with the last one the directory.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    pub fn leave(&self, owner: &str) -> anyhow::Result<()> {
        let path = self.0.join(file_name(owner));
        let left = fs::remove_file(&path);
        if !is_not_found(&left) {
            left.with_context(|| format!("remove {}", path.display()))?;
        }
        // Fails if the directory has other files.
        fs::remove_dir(&self.0).ok();
        Ok(())
    }

    fn read(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.0);
        if is_not_found(&entries) {
            return Ok(Vec::new());
        }
        let mut owners = Vec::new();
        for entry in entries? {
            owners.extend(entry?.file_name().to_str().and_then(owner_of));
        }
        owners.sort_unstable();
        Ok(owners)
    }
}

fn is_not_found<T>(outcome: &io::Result<T>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Attempts to create a file, because the last owner to leave may remove the directory before it.
const ATTEMPTS: usize = 100;
