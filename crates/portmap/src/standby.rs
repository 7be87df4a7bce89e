//! The standby list: attachments that want a port which another attachment of their container
//! serves.
//!
//! Each has an empty file, named like its record, in a directory of their own. A node without such
//! attachments has no such directory, so DEL needs one system call to find that none takes over.

use std::fs;
use std::path::PathBuf;

use cni::note;

use crate::owners::Owners;
use crate::record;

/// The directory of the standby list.
#[derive(Debug)]
pub(crate) struct Standby(Owners);

impl Default for Standby {
    fn default() -> Self {
        Self(Owners(PathBuf::from(record::DIRECTORY).join("standby")))
    }
}

impl Standby {
    /// Returns the owners on standby, sorted. A directory that cannot be read is logged and counts
    /// as empty, because DEL removes its own elements in any case.
    pub fn owners(&self) -> Vec<String> {
        let Self(owners) = self;
        owners.all().unwrap_or_else(|error| {
            note(format_args!("read {}: {error}", owners.0.display()));
            Vec::new()
        })
    }

    /// Adds `owner`, which must have a record.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn join(&self, owner: &str) -> anyhow::Result<()> {
        self.0.join(owner)
    }

    /// Removes `owner`, and with the last one the directory.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    pub fn leave(&self, owner: &str) -> anyhow::Result<()> {
        self.0.remove(owner)?;
        // Fails if the directory has other files.
        fs::remove_dir(&self.0.0).ok();
        Ok(())
    }
}
