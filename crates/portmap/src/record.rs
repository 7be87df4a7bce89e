//! What ADD wrote down of a sandbox, by which it is known later whether it lives, and what it has.
//!
//! A record is a file of its own, named after the owner of the ports, in a directory that does
//! not outlive a reboot, as no sandbox does. It is whole or absent.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::Attachment;
use nft::Element;
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;

/// A sandbox, as ADD found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `CNI_NETNS`
    pub netns: PathBuf,
    /// Which namespace that was.
    pub identity: Identity,
    /// `CNI_IFNAME`
    pub interface: String,
    /// The index of the host's end of the pair that leads there, where one was told of.
    #[serde(default)]
    pub host_link: Option<u32>,
    /// The index of the link by which packets from 127.0.0.1 leave to it, if any do.
    #[serde(default)]
    pub localnet: Option<u32>,
    /// The addresses that ports lead to.
    pub addresses: Vec<IpAddr>,
    /// What it may have in `nf_tables`, now or when it takes over, and nothing but this.
    pub elements: Vec<Element>,
    /// Which packets its ports are for, where the elements lead to a chain of conditions.
    #[serde(default, skip_serializing_if = "Conditions::is_empty")]
    pub conditions_v4: Conditions,
    #[serde(default, skip_serializing_if = "Conditions::is_empty")]
    pub conditions_v6: Conditions,
}

/// What tells a file from another one that bears its name later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// The directory of all records.
#[derive(Debug)]
pub(crate) struct Records(PathBuf);

impl Record {
    /// The same sandbox, with these elements.
    pub fn with(&self, elements: Vec<Element>) -> Self {
        Self {
            elements,
            ..self.clone()
        }
    }
}

impl Identity {
    /// That of the file at `path`.
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
        Self(PathBuf::from(DIRECTORY))
    }
}

impl Records {
    /// Writes the record of `owner`, in the place of one that is there.
    pub fn write(&self, owner: &str, record: &Record) -> anyhow::Result<()> {
        let path = self.file("", owner);
        let write = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&self.0)?;
            let new = self.file(NEW, owner);
            private(&new)?.write_all(&serde_json::to_vec(record)?)?;
            fs::rename(&new, &path)
        };
        let action = || {
            format!(
                "write record {}, for which portmap needs to write below /run",
                path.display()
            )
        };
        write().with_context(action)
    }

    /// The record of `owner`; `None` where there is none that can be read.
    pub fn read(&self, owner: &str) -> Option<Record> {
        let bytes = fs::read(self.file("", owner)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// That of an attachment which must have one.
    pub fn find(&self, attachment: &Attachment) -> anyhow::Result<Record> {
        let record = self.read(&attachment.owner());
        record.with_context(|| {
            format!(
                "there is no record of {attachment} in {}, as after a DEL or an ADD by another plugin; only ADD makes one",
                self.0.display()
            )
        })
    }

    /// There is a record of `owner`, but it cannot be read, as another version wrote it.
    pub fn is_torn(&self, owner: &str) -> bool {
        self.file("", owner).exists() && self.read(owner).is_none()
    }

    /// Removes the record of `owner`, and what is left of one that was never whole.
    pub fn remove(&self, owner: &str) -> anyhow::Result<()> {
        for path in [self.file(NEW, owner), self.file("", owner)] {
            match fs::remove_file(&path) {
                // Where nothing may be written the kernel says so before it looks for the file.
                Err(error) if fs::exists(&path).unwrap_or(true) => {
                    return Err(error).with_context(|| format!("remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Those of whom there is a record, or the beginning of one.
    pub fn owners(&self) -> anyhow::Result<Vec<String>> {
        let action = || format!("read directory {}", self.0.display());
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(action)?,
        };
        let mut owners = Vec::new();
        for entry in entries {
            let name = entry.with_context(action)?.file_name();
            owners.extend(name.to_str().and_then(owner_of));
        }
        Ok(owners)
    }

    fn file(&self, prefix: &str, owner: &str) -> PathBuf {
        self.0.join(format!("{prefix}{}", file_name(owner)))
    }
}

/// No name of which an owner is made holds a colon.
pub(crate) fn file_name(owner: &str) -> String {
    owner.replace('/', ":")
}

/// The owner whose record, or beginning of a record, has this file name.
pub(crate) fn owner_of(name: &str) -> Option<String> {
    let name = name.strip_prefix(NEW).unwrap_or(name);
    let names = name.strip_prefix("cni:")?;
    Some(format!("cni:{}", names.replace(':', "/")))
}

/// A file for nobody's eyes but root's, empty.
fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

/// Where records are.
pub(crate) const DIRECTORY: &str = "/run/cni/portmap";

/// What a file's name begins with until it is whole.
const NEW: &str = "new-";

#[cfg(test)]
mod tests {
    use nft::Value;

    use super::*;

    #[test]
    fn record_is_found_by_its_owner_and_removed_with_what_was_never_whole() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records(directory.path().join("portmap"));
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
            conditions_v4: Conditions::default(),
            conditions_v6: Conditions::default(),
        };
        let owner = "cni:pods/c1/eth0";
        for _ in 0..2 {
            records.write(owner, &record).unwrap();
        }
        assert_eq!(records.read(owner), Some(record));
        let half = directory.path().join("portmap/new-cni:pods:c2:net.1");
        fs::write(&half, "{").unwrap();
        let mut owners = records.owners().unwrap();
        owners.sort();
        assert_eq!(owners, [owner, "cni:pods/c2/net.1"]);
        for owner in owners {
            records.remove(&owner).unwrap();
        }
        assert!(records.owners().unwrap().is_empty() && !half.exists());
        assert_eq!(records.read(owner), None);
    }
}
