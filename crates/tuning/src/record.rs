//! Records of the settings that interfaces had before ADD: one file for each container and
//! interface. The file's path and its keys are those of the Go plugin.
//!
//! ADD changes an interface only after it has written a record, or found an earlier one. A killed
//! ADD leaves no incomplete record, except on a file system without unnamed files (`O_TMPFILE`). A
//! symbolic link or a pipe may be at the path of a record. The plugin replaces or removes it, but
//! does not follow or read it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::files::{Links, read_regular};
use cni::{Attachment, GcRequest, note};
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// The settings that an interface had before ADD changed it, and the attachment of this ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The former settings.
    #[serde(flatten)]
    pub former: Settings,
    /// The attachment's tag ([`Attachment::owner`]); empty if the Go plugin wrote the record. The
    /// Go plugin ignores this key.
    #[serde(default)]
    pub owner: String,
    /// Inode of the sandbox's namespace; `None` if it is unknown. The Go plugin ignores this key.
    pub sandbox: Option<u64>,
}

impl Record {
    /// Reads the record at `path`. Returns `None` if there is no file. Also returns `None`, and
    /// logs this on standard error, if the file is not a valid record.
    pub fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let bytes = match read_regular(path, Links::Refuse, LARGEST) {
            Err(error) if NO_FILE.contains(&error.kind()) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::FileTooLarge || !is_file(path) => Vec::new(),
            bytes => bytes.with_context(|| format!("read {}", path.display()))?,
        };
        let record = serde_json::from_slice(&bytes).ok();
        if record.is_none() {
            note(format_args!("{} is not a valid record", path.display()));
        }
        Ok(record)
    }

    /// Returns whether both records belong to the same attachment and sandbox.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.owner, self.sandbox) == (&other.owner, other.sandbox)
    }

    /// Returns whether the record may belong to `attachment`. The path of the record does not prove
    /// it: container `a_b` with interface `c` and container `a` with interface `b_c` have the same
    /// path.
    pub fn may_be_of(&self, attachment: &Attachment) -> bool {
        self.owner.is_empty() || self.owner == attachment.owner()
    }

    /// Writes the record to `path`. Replaces an existing one.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let write = || {
            let directory = path.parent().unwrap_or(path);
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
            remove(path)?;
            let mut options = OpenOptions::new();
            options.write(true).mode(0o600);
            let unnamed = options
                .clone()
                .custom_flags(OFlag::O_TMPFILE.bits())
                .open(directory);
            let mut file = match unnamed {
                // Some file systems support no unnamed files, for example overlayfs before Linux
                // 6.3.
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    options.create_new(true).open(path)?
                }
                file => file?,
            };
            file.write_all(&serde_json::to_vec(self)?)?;
            if file.metadata()?.nlink() == 0 {
                let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
                linkat(
                    AT_FDCWD,
                    unnamed.as_str(),
                    AT_FDCWD,
                    path,
                    AtFlags::AT_SYMLINK_FOLLOW,
                )?;
            }
            Ok::<_, anyhow::Error>(())
        };
        write().with_context(|| format!("write {}; see dataDir", path.display()))
    }
}

/// Returns the path of the attachment's record. It is always inside `directory`, because names of
/// containers and interfaces contain no slash.
pub(crate) fn path(directory: &Path, attachment: &Attachment) -> PathBuf {
    let (container, interface) = (&attachment.container, &attachment.interface);
    directory.join(format!("{container}_{interface}.json"))
}

/// Returns the inode of the sandbox's namespace; `None` if the path cannot be read.
pub(crate) fn sandbox(netns: &Path) -> Option<u64> {
    fs::metadata(netns).ok().map(|it| it.ino())
}

/// Returns whether `path` itself is a regular file, and no link.
fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_file())
}

/// Removes the record, if there is one.
pub(crate) fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        // An error counts only if the file exists. A read-only file system refuses to remove even a
        // missing file (EROFS).
        Err(error) if path.symlink_metadata().is_ok() => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// GC: removes the records of those attachments of this network that the runtime does not list.
/// Records that the Go plugin wrote stay, because they do not name their network.
pub(crate) fn collect(request: &GcRequest) -> anyhow::Result<()> {
    let directory = crate::config::data_dir(&request.network)?;
    cni::step("remove records");
    let entries = match fs::read_dir(&directory) {
        Err(error) if NO_FILE.contains(&error.kind()) => return Ok(()),
        entries => entries.with_context(|| format!("read directory {}", directory.display()))?,
    };
    let is_stale = request.stale();
    cni::all(entries.map(|entry| {
        let path = entry?.path();
        let Some(record) = Record::read(&path)?.filter(|it| is_stale(&it.owner)) else {
            return Ok(());
        };
        let owner = record.owner;
        note(format_args!(
            "remove the record of {owner}, which the runtime does not list"
        ));
        remove(&path)
    }))
}

/// Errors that mean that no file can be at a path: there is no file, the path is too long, or a
/// part of it is not a directory.
const NO_FILE: [ErrorKind; 3] = [
    ErrorKind::NotFound,
    ErrorKind::InvalidFilename,
    ErrorKind::NotADirectory,
];

/// Size limit in bytes: a larger file is no valid record. A record has about 200
/// bytes.
const LARGEST: u64 = 1 << 16;

#[cfg(test)]
mod tests;
