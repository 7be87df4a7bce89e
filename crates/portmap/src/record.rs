//! Records of attachments. A record lists the facts by which later verbs recognise the sandbox, and
//! the attachment's elements in `nf_tables`.
//!
//! A record is a file named after its owner. Its directory does not survive a reboot, as no sandbox
//! does. A record is either complete or missing.
//!
//! DEL and GC rename ("retire") the record before they remove ports. RELOAD needs no lock against
//! them, because it forwards only ports of attachments with a record, and looks for the record
//! again afterwards. If RELOAD forwarded ports after DEL had listed the ports, RELOAD finds the
//! record retired and removes the ports itself.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::Attachment;
use nft::Element;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::owners::{create_directory, file_name, list, owner_of, remove_file};

/// The facts about a sandbox that ADD recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `CNI_NETNS`
    pub netns: PathBuf,
    /// Identifies the namespace that was at that path during ADD.
    pub identity: Identity,
    /// `CNI_IFNAME`
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
    /// All elements that the attachment may have in `nf_tables`, now or after it takes over a port.
    pub elements: Vec<Element>,
    /// The conditions of the attachment's ports, if its elements point to a chain of conditions.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// Identifies a file, so a later file at the same path is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// The directory of all records.
#[derive(Debug)]
pub(crate) struct Records {
    directory: PathBuf,
    writing: Writing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// Writes new and existing records.
    All,
    /// Writes existing records only.
    Existing,
}

impl Record {
    /// Returns a copy of the record, with `elements` in place of its own.
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

impl Default for Records {
    fn default() -> Self {
        Self {
            directory: PathBuf::from(DIRECTORY),
            writing: Writing::All,
        }
    }
}

impl Records {
    /// Returns the records for RELOAD. RELOAD must not recreate a record that a concurrent DEL has
    /// retired or removed.
    pub fn of_attached() -> Self {
        Self {
            writing: Writing::Existing,
            ..Self::default()
        }
    }

    /// Writes the record of `owner`. Replaces an existing one.
    pub fn write(&self, owner: &str, record: &Record) -> anyhow::Result<()> {
        let path = self.file("", owner);
        let write = || {
            create_directory(&self.directory)?;
            let new = self.file(NEW, owner);
            private(&new)?.write_all(&serde_json::to_vec(record)?)?;
            match self.writing {
                Writing::All => Ok(fs::rename(&new, &path)?),
                Writing::Existing => {
                    let exchanged = renameat_with(CWD, &new, CWD, &path, RenameFlags::EXCHANGE);
                    fs::remove_file(&new)?;
                    anyhow::Ok(exchanged?)
                }
            }
        };
        let action = || {
            format!(
                "write record {}, for which portmap needs to write below /run",
                path.display()
            )
        };
        write().with_context(action)
    }

    /// Returns the record of `owner`, also a retired one; `None` if the record is missing or
    /// unreadable.
    pub fn read(&self, owner: &str) -> Option<Record> {
        read(&self.file("", owner)).or_else(|| read(&self.file(RETIRED, owner)))
    }

    /// Returns the record of an attachment. Fails if the record is missing, retired or unreadable.
    pub fn find(&self, attachment: &Attachment) -> anyhow::Result<Record> {
        let record = read(&self.file("", &attachment.owner()));
        record.with_context(|| {
            format!(
                "there is no record of {attachment} in {}, as after a DEL or an ADD by another \
                 plugin; only ADD creates one",
                self.directory.display()
            )
        })
    }

    /// Returns the record of an earlier ADD, if there is one. For RELOAD, a missing record is an
    /// error.
    pub fn earlier(&self, attachment: &Attachment) -> anyhow::Result<Option<Record>> {
        match self.writing {
            Writing::All => Ok(self.read(&attachment.owner())),
            Writing::Existing => self.find(attachment).map(Some),
        }
    }

    /// Returns whether `owner` has a record that no DEL or GC has retired.
    pub fn has(&self, owner: &str) -> bool {
        self.file("", owner).exists()
    }

    /// Retires the record of `owner`: DEL or GC is about to remove its ports. An error is ignored,
    /// because it must not prevent the removal.
    pub fn retire(&self, owner: &str) {
        fs::rename(self.file("", owner), self.file(RETIRED, owner)).ok();
    }

    /// Returns whether the record of `owner` exists but is unreadable, as after a change of its
    /// format.
    pub fn is_torn(&self, owner: &str) -> bool {
        self.file("", owner).exists() && self.read(owner).is_none()
    }

    /// Removes the record of `owner`, also if it is retired or incomplete.
    pub fn remove(&self, owner: &str) -> anyhow::Result<()> {
        let mut prefixes = [NEW, "", RETIRED].into_iter();
        prefixes.try_for_each(|prefix| remove_file(&self.file(prefix, owner)))
    }

    /// Returns the owners of all records, including retired and incomplete ones.
    pub fn owners(&self) -> anyhow::Result<BTreeSet<String>> {
        let owners = list(&self.directory, owner_of_record);
        owners.with_context(|| format!("read directory {}", self.directory.display()))
    }

    fn file(&self, prefix: &str, owner: &str) -> PathBuf {
        self.directory.join(format!("{prefix}{}", file_name(owner)))
    }
}

fn read(file: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// Returns the owner of the record with this file name, also if the record is retired or
/// incomplete.
fn owner_of_record(name: &str) -> Option<String> {
    let prefixes = [NEW, RETIRED].into_iter();
    let name = prefixes.fold(name, |name, it| name.strip_prefix(it).unwrap_or(name));
    owner_of(name)
}

/// Opens a file for writing and empties it. Only root may read the file.
fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

/// The directory of all records.
pub(crate) const DIRECTORY: &str = "/run/cni/portmap";

/// Prefix of an incomplete record's file name.
const NEW: &str = "new-";

/// Prefix of a retired record's file name.
const RETIRED: &str = "retired-";

#[cfg(test)]
mod tests {
    use nft::Value;

    use super::*;

    #[test]
    fn record_is_found_by_its_owner_and_removed_with_what_was_never_whole() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records {
            directory: directory.path().join("portmap"),
            writing: Writing::All,
        };
        assert!(records.owners().unwrap().is_empty());
        let record = Record {
            netns: "/run/netns/a".into(),
            identity: Identity::of(Path::new("/proc/self/ns/net")).unwrap(),
            interface: "eth0".to_owned(),
            host_link: Some(7),
            localnet: Some(3),
            addresses: vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            elements: vec![Element::new(
                "ports4",
                &[Value::Port(80)],
                "cni:pods/c1/eth0",
            )],
            conditions: Conditions::default(),
        };
        let owner = "cni:pods/c1/eth0";
        for _ in 0..2 {
            records.write(owner, &record).unwrap();
        }
        assert_eq!(records.read(owner), Some(record));
        let half = directory.path().join("portmap/new-cni:pods:c2:net.1");
        fs::write(&half, "{").unwrap();
        let owners = records.owners().unwrap();
        assert_eq!(Vec::from_iter(&owners), [owner, "cni:pods/c2/net.1"]);
        for owner in owners {
            records.remove(&owner).unwrap();
        }
        assert!(records.owners().unwrap().is_empty() && !half.exists());
        assert_eq!(records.read(owner), None);
    }

    #[test]
    fn retired_record_is_read_and_removed_but_not_written_for_an_attachment_that_goes() {
        let directory = tempfile::tempdir().unwrap();
        let [of_add, of_reload] = [Writing::All, Writing::Existing].map(|writing| Records {
            directory: directory.path().to_owned(),
            writing,
        });
        let record = Record {
            netns: "/run/netns/a".into(),
            identity: Identity::of(Path::new("/proc/self/ns/net")).unwrap(),
            interface: "eth0".to_owned(),
            host_link: None,
            addresses: Vec::new(),
            elements: Vec::new(),
            localnet: None,
            conditions: Conditions::default(),
        };
        let (owner, other) = (
            "cni:pods/c1/eth0",
            Record {
                interface: "eth1".to_owned(),
                ..record.clone()
            },
        );
        of_reload.write(owner, &record).unwrap_err();
        of_add.write(owner, &record).unwrap();
        of_reload.write(owner, &other).unwrap();
        assert_eq!(of_add.read(owner).as_ref(), Some(&other));
        assert!(of_add.has(owner));
        of_add.retire(owner);
        assert!(!of_add.has(owner));
        of_reload.write(owner, &record).unwrap_err();
        assert_eq!(of_reload.read(owner), Some(other));
        assert_eq!(Vec::from_iter(of_add.owners().unwrap()), [owner]);
        of_add.remove(owner).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
