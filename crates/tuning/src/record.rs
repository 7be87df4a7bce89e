//! Records of the settings that interfaces had before ADD: one file for each container and
//! interface. The file's path and its keys are those of the Go plugin.
//!
//! ADD changes an interface only after it has written a record, or found an earlier one. A killed
//! ADD leaves no incomplete record, except on a file system without unnamed files (`O_TMPFILE`). A
//! symbolic link or a pipe may be at the path of a record. The plugin replaces or removes it, but
//! does not follow or read it.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::files::{self, Links, if_present, make_directory, read_regular};
use cni::{Attachment, GcRequest, note};
use netlink::Connection;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use serde::{Deserialize, Serialize};

use crate::Settings;

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
    /// The sandbox. The Go plugin ignores its keys.
    #[serde(flatten)]
    pub namespace: Namespace,
}

/// What identifies a sandbox's namespace. The kernel reuses inodes, but not cookies
/// (`SO_NETNS_COOKIE`, Linux 5.14).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    /// Inode; `None` if it is unknown.
    #[serde(rename = "sandbox")]
    inode: Option<u64>,
    /// `None` if the kernel has no cookies, and in a record of an earlier release.
    cookie: Option<u64>,
}

impl Namespace {
    /// Returns what identifies the namespace at `netns`, to which `connection` leads.
    pub fn of(connection: &Connection, netns: &Path) -> Self {
        Self {
            inode: fs::metadata(netns).ok().map(|it| it.ino()),
            cookie: connection.namespace_cookie(),
        }
    }

    /// Returns whether both are the same namespace; `None` if this is unknown.
    pub fn is_same(&self, other: &Self) -> Option<bool> {
        let pairs = [(self.cookie, other.cookie), (self.inode, other.inode)];
        let mut known = pairs.into_iter().filter_map(|(one, other)| one.zip(other));
        known.next().map(|(one, other)| one == other)
    }
}

impl Record {
    /// Reads the record at `path`. Returns `None` if there is no file. Also returns `None`, and
    /// logs this on standard error, if the file is not a valid record.
    pub fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let bytes = match if_present(read_regular(path, Links::Refuse, LARGEST)) {
            Ok(None) => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::FileTooLarge || !is_file(path) => None,
            Err(error) => Err(error).with_context(|| format!("read {}", path.display()))?,
        };
        let record = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if record.is_none() {
            note!("{} is not a valid record", path.display());
        }
        Ok(record)
    }

    /// Returns whether both records belong to the same attachment and sandbox.
    pub fn is_like(&self, other: &Self) -> bool {
        self.owner == other.owner && self.namespace.is_same(&other.namespace) == Some(true)
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
            make_directory(directory, 0o700)?;
            files::remove(path)?;
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

/// Returns whether `path` itself is a regular file, and no link.
fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_file())
}

/// GC: removes the records of those attachments of this network that the runtime does not list.
/// Records that the Go plugin wrote stay, because they do not name their network.
pub(crate) fn collect(request: &GcRequest) -> anyhow::Result<()> {
    let directory = crate::config::data_dir(&request.network)?;
    cni::step("remove records");
    let entries = if_present(fs::read_dir(&directory))
        .with_context(|| format!("read directory {}", directory.display()))?;
    let is_stale = request.stale();
    cni::all(entries.into_iter().flatten().map(|entry| {
        let path = entry?.path();
        let Some(record) = Record::read(&path)?.filter(|it| is_stale(&it.owner)) else {
            return Ok(());
        };
        let owner = record.owner;
        note!("remove the record of {owner}, which the runtime does not list");
        files::remove(&path)
    }))
}

/// Size limit in bytes: a larger file is no valid record. A record has about 200
/// bytes.
const LARGEST: u64 = 1 << 16;

#[cfg(test)]
mod tests;
