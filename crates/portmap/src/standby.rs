//! Attachments that want a port which another attachment of their container serves.
//!
//! Each has an empty file in a directory of its own kind, named like its record. A node without such
//! attachments has no such directory, so DEL finds out by one system call that nothing takes over.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use cni::note;

use crate::record::{self, file_name, owner_of};

/// The directory.
#[derive(Debug)]
pub(crate) struct Standby(PathBuf);

impl Default for Standby {
    fn default() -> Self {
        Self(PathBuf::from(record::DIRECTORY).join("standby"))
    }
}

impl Standby {
    /// The owners of the attachments that stand by, in order. What cannot be read is logged and taken for
    /// empty: DEL removes what it has in any case.
    pub fn owners(&self) -> Vec<String> {
        self.read().unwrap_or_else(|error| {
            note(format_args!("read {}: {error}", self.0.display()));
            Vec::new()
        })
    }

    /// `owner` takes over from now on. Its record has to be there.
    ///
    /// # Errors
    /// The file cannot be made.
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

    /// `owner` takes over no more. The last one to leave removes the directory.
    ///
    /// # Errors
    /// The file is there and cannot be removed.
    pub fn leave(&self, owner: &str) -> anyhow::Result<()> {
        let path = self.0.join(file_name(owner));
        let left = fs::remove_file(&path);
        if !is_not_found(&left) {
            left.with_context(|| format!("remove {}", path.display()))?;
        }
        // Others may be in it.
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

/// The directory goes with the last one to leave, which may come between its creation and the file's.
const ATTEMPTS: usize = 100;
