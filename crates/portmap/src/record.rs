//! Records of attachments. A record contains data by which later verbs find out whether the sandbox
//! still exists, and the attachment's elements in `nf_tables`.
//!
//! DEL and GC retire (rename) the record before they remove ports. RELOAD forwards only ports of
//! attachments with a record. Afterwards it looks for the record again, and removes the ports if
//! DEL or GC has retired the record in the meantime.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use attach::{OwnerFiles, Writing};
use cni::{Attachment, FirstFormat};
use nft::Element;
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;

/// The record of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The format of this record. A record in a later format cannot be parsed.
    #[serde(default)]
    pub format: FirstFormat,
    /// Path of the sandbox's namespace (`CNI_NETNS`).
    pub netns: PathBuf,
    /// Identifies the namespace that was at the path `netns` during ADD.
    pub identity: Identity,
    /// Name of the container's interface (`CNI_IFNAME`).
    pub interface: String,
    /// The index of the host's end of the veth pair, if `prevResult` named one.
    #[serde(default)]
    pub host_link: Option<u32>,
    /// The index of the host's link by which packets from 127.0.0.1 leave to the container; `None`
    /// if no port of 127.0.0.1 is forwarded.
    #[serde(default)]
    pub localnet: Option<u32>,
    /// The container's addresses that ports are forwarded to.
    pub addresses: Vec<IpAddr>,
    /// All elements that the attachment may have in `nf_tables`: those that exist, and those of
    /// ports for which the attachment is on standby, because another attachment of the same
    /// container may pass the port on.
    pub elements: Vec<Element>,
    /// The conditions of the attachment's ports. If there are none, no element of the attachment
    /// points to a chain of conditions.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// Device and inode of a file. They differ from those of a later file at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Record {
    /// Returns the record of `owner`, even if DEL or GC has retired (renamed) it; `None` if it is
    /// missing or unreadable.
    pub fn read(owner: &str) -> Option<Self> {
        Self::parse(&files().find_also_retired(owner)?)
    }

    /// Returns the record of an attachment.
    ///
    /// # Errors
    /// The record is missing or unreadable, or DEL or GC has retired (renamed) it.
    pub fn find(attachment: &Attachment) -> anyhow::Result<Self> {
        let text = files().find(&attachment.owner())?;
        Self::parse(&text).with_context(|| format!("the record of {attachment} is unreadable"))
    }

    /// Parses the text of a record; `None` if it is not a record, or if a later version of the
    /// plugin wrote it in another format.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns whether `owner` has a record that is not retired but unreadable, for example because
    /// a later version of the plugin wrote it in another format.
    pub fn is_torn(owner: &str) -> bool {
        files().has(owner) && Self::read(owner).is_none()
    }

    /// Writes the record of `owner`.
    pub fn write(&self, owner: &str, writing: Writing) -> anyhow::Result<()> {
        files().write(owner, &serde_json::to_string(self)?, writing)
    }

    /// Returns a copy of the record that lists `elements` instead of the original elements.
    pub fn with(&self, elements: Vec<Element>) -> Self {
        Self {
            elements,
            ..self.clone()
        }
    }
}

impl Identity {
    /// Returns the identity of the file at `path`.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

/// Returns whether the attachment with this owner tag has a record. Returns `false` as soon as a
/// DEL or GC has retired (renamed) the record, which it does before it deletes elements.
pub fn is_recorded(owner: &str) -> bool {
    files().has(owner)
}

/// Returns the directory of all records.
pub(crate) fn files() -> OwnerFiles {
    OwnerFiles("/run/cni/portmap".into())
}
