//! Records of attachments. A record lists the facts by which later verbs recognise the sandbox, and
//! the attachment's elements in `nf_tables`.
//!
//! DEL and GC retire the record before they remove ports. RELOAD forwards only ports of attachments
//! with a record, and looks for the record again afterwards.

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
    /// All elements that the attachment may have in `nf_tables`: those that it has now, and those
    /// of ports that another attachment of the same container holds and may hand over.
    pub elements: Vec<Element>,
    /// The conditions of the attachment's ports. Without conditions, this is empty, and no element
    /// points to a chain of conditions.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// Device and inode of a file. They distinguish the file from a later one at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Record {
    /// Returns the record of `owner`, also a retired one; `None` if the record is missing or
    /// unreadable.
    pub fn read(owner: &str) -> Option<Self> {
        Self::parse(&files().find_also_retired(owner)?)
    }

    /// Returns the record of an attachment. Fails if the record is missing, retired or unreadable.
    pub fn find(attachment: &Attachment) -> anyhow::Result<Self> {
        let text = files().find(&attachment.owner())?;
        Self::parse(&text).with_context(|| format!("the record of {attachment} is unreadable"))
    }

    /// Parses the text of a record; `None` if a later version wrote it in another format.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns whether the record of `owner` exists but is unreadable, for example because a
    /// later version wrote it in another format.
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

/// Returns whether the attachment with this owner tag has a record that no DEL or GC has retired.
/// DEL and GC retire a record before they delete elements.
pub fn is_recorded(owner: &str) -> bool {
    files().has(owner)
}

/// Returns the directory of all records.
pub(crate) fn files() -> OwnerFiles {
    OwnerFiles("/run/cni/portmap".into())
}
