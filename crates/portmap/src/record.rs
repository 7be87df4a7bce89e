//! Records of attachments. A record is a file that ADD writes for later verbs. It lists the
//! attachment's elements in `nf_tables`, and identifies the sandbox, so that later verbs can find
//! out whether the sandbox still exists.
//!
//! DEL and GC retire (rename) the record before they remove ports. RELOAD, a verb of this suite,
//! restores only ports of attachments with a record. Afterwards it looks for the record again, and
//! removes the ports if DEL or GC has retired the record in the meantime.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::ops::Not;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use attach::{OwnerFiles, Writing};
use cni::{Attachment, FirstFormat};
use nft::Element;
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;

/// What ADD records about an attachment for later verbs, in a JSON file.
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
    /// The index of the host's end of the veth pair; `None` if `prevResult` named none.
    pub host_link: Option<u32>,
    /// The index of the host's link through which packets from 127.0.0.1 reach the container;
    /// `None` if the container gets no such packets.
    pub localnet: Option<u32>,
    /// The links that `localnet` named in records of earlier ADDs of the attachment, until the
    /// present ADD has released them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_localnets: Vec<u32>,
    /// Whether rules alone keep neighbours off 127.0.0.0/8, without `IPsec` policies.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub rules_alone: bool,
    /// The container's addresses that ports are forwarded to.
    pub addresses: Vec<IpAddr>,
    /// All elements that the attachment has or may get in `nf_tables`. It may get the elements of a
    /// port for which it is on standby: another attachment of the same container forwards this port
    /// now, and passes it on at its DEL.
    pub elements: Vec<Element>,
    /// Tags of attachments that had an address of this one before, the latest first. This one took
    /// over their elements that masquerade clients of this address. DEL gives such an element to
    /// the first of these attachments that has a record and lists the element there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub displaced: Vec<String>,
    /// The conditions for packets to the attachment's ports (`conditionsV4`, `conditionsV6`). If
    /// the DEL of another attachment passes a port on to this one, that DEL creates the chain that
    /// checks these conditions.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// Device and inode of a file. If they change, the path has another file. But the kernel may give a
/// new namespace the same numbers as a deleted one.
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

    /// Returns the record of `owner`; `None` if it is missing or unreadable, or if DEL or GC has
    /// retired (renamed) it.
    pub fn current(owner: &str) -> Option<Self> {
        Self::parse(&files().find(owner).ok()?)
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

    /// Returns whether the record of `owner` exists but is unreadable, for example because a later
    /// version of the plugin wrote it in another format. Returns `false` if DEL or GC has retired
    /// (renamed) the record.
    pub fn is_torn(owner: &str) -> bool {
        files().has(owner) && Self::read(owner).is_none()
    }

    /// Writes this record as the record of `owner`. `writing` determines whether the function
    /// creates a missing record or fails.
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

    /// Returns the indices in `localnet` and `former_localnets`.
    pub fn localnets(&self) -> impl Iterator<Item = u32> {
        let former = self.former_localnets.iter().copied();
        self.localnet.into_iter().chain(former)
    }

    /// Adds `owner` to the displaced attachments, before the present ones. Also adds those that
    /// `owner` itself displaced: they get the elements if `owner` is deleted first. Removes others
    /// without a record, which get no elements back. The present order stays, because each of the
    /// attachments names those that follow it.
    pub fn displace(&mut self, owner: &str) {
        let theirs = Self::read(owner).map(|it| it.displaced).unwrap_or_default();
        let present = mem::take(&mut self.displaced);
        let all = if present.iter().any(|it| it == owner) {
            [present, theirs].concat()
        } else {
            [vec![owner.to_owned()], theirs, present].concat()
        };
        let mut seen = BTreeSet::new();
        let kept = all.into_iter().filter(|it| it == owner || files().has(it));
        self.displaced = kept.filter(|it| seen.insert(it.clone())).collect();
    }
}

impl Identity {
    /// Reads the device and inode of the file at `path`. A later verb compares them to find out
    /// whether the path still has the same file.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

/// Returns whether an attachment needs the `IPsec` policies that keep neighbours off 127.0.0.0/8. A
/// directory that cannot be read counts as one with such an attachment.
pub fn needs_policies() -> bool {
    let needs_them = |it: Record| it.localnet.is_some() && !it.rules_alone;
    let owners = files().owners();
    owners.map_or(true, |owners| {
        let mut records = owners.iter().filter_map(|it| Record::read(it));
        records.any(needs_them)
    })
}

pub(crate) fn files() -> OwnerFiles {
    OwnerFiles("/run/cni/portmap".into())
}
