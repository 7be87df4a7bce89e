//! The standby list: attachments that want a port which another attachment of the same container
//! serves.
//!
//! Each attachment on standby has an empty file, named like its record, in a directory for this
//! list. A node without such attachments has no such directory. So one system call shows DEL that
//! no attachment takes over its ports.

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
    /// Returns the owners on standby, sorted. If the directory cannot be read, the function logs
    /// the error and returns none, because DEL removes its own elements in any case.
    pub fn owners(&self) -> Vec<String> {
        let Self(owners) = self;
        owners.all().unwrap_or_else(|error| {
            note(format_args!("read {}: {error}", owners.0.display()));
            Vec::new()
        })
    }

    /// Adds `owner`. The caller must have written its record, because the attachment that passes a
    /// port on reads it.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn join(&self, owner: &str) -> anyhow::Result<()> {
        self.0.join(owner)
    }

    /// Removes `owner`. Removes the directory with the last owner.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    pub fn leave(&self, owner: &str) -> anyhow::Result<()> {
        self.0.remove(owner)?;
        // Fails if the directory still has files of other owners.
        fs::remove_dir(&self.0.0).ok();
        Ok(())
    }
}
