//! Witnesses: records of the sandboxes of links that have no end on the host.
//!
//! Such a link leaves nothing on the host that proves that it exists. So ADD records the sandbox
//! before it makes the link, and DEL and GC remove the record after the link. The record identifies
//! the namespace by its cookie, a number that the kernel gives no other namespace of this boot
//! (`SO_NETNS_COOKIE`, Linux 5.14). On an older kernel, only device and inode identify it, and the
//! kernel reuses inodes. A sandbox whose state is unknown counts as existing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::files::{boot_id, identity};
use netlink::Connection;
use netns::Netns;
use serde::{Deserialize, Serialize};

use crate::{OwnerFiles, Writing};

/// The record of a sandbox in which an attachment has a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// `CNI_NETNS` of the ADD.
    pub netns: PathBuf,
    /// The link and its parent, in words.
    pub link: String,
    /// The cookie of the namespace; `None` if the kernel has none.
    cookie: Option<u64>,
    /// Device and inode of the namespace.
    file: Option<(u64, u64)>,
    /// ID of the boot (random(4)).
    boot: String,
    /// The mount namespace in which [`Self::netns`] is a path.
    mounts: Option<PathBuf>,
}

/// Whether the sandbox of a [`Witness`] exists.
pub enum Presence {
    /// It exists. The fields are the namespace and a connection to the kernel in it.
    Present(Netns, Connection),
    /// It exists no more, and with it the link.
    Gone,
    /// This process cannot find out. The field is the reason.
    Unknown(String),
}

impl Witness {
    /// Returns the record of an attachment whose `link` is in the namespace at `netns`, to which
    /// `connection` leads.
    ///
    /// # Errors
    /// The boot ID cannot be read.
    pub fn new(netns: &Path, connection: &Connection, link: String) -> anyhow::Result<Self> {
        Ok(Self {
            netns: netns.to_owned(),
            link,
            cookie: connection.namespace_cookie(),
            file: identity(fs::metadata(netns)),
            boot: boot_id()?,
            mounts: mounts(),
        })
    }

    /// Returns the record of the attachment with the tag `owner`; `None` if it has none. A record
    /// that a later version of the suite wrote in another way is an error.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn find(owner: &str) -> anyhow::Result<Option<Self>> {
        if !files().has(owner) {
            return Ok(None);
        }
        let witness = serde_json::from_str(&files().find(owner)?);
        Ok(Some(witness.with_context(|| {
            format!("parse the record of {owner} in {DIRECTORY}")
        })?))
    }

    /// Returns the records of all attachments by their tags, or the reason why a record cannot be
    /// read. The record is `None` if a killed ADD or DEL left a part of it, while there is no link.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all() -> anyhow::Result<BTreeMap<String, anyhow::Result<Option<Self>>>> {
        let owners = files().owners()?.into_iter();
        let found = owners.map(|owner| (Self::find(&owner), owner));
        Ok(found.map(|(witness, owner)| (owner, witness)).collect())
    }

    /// Writes the record of the attachment with the tag `owner`.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn write(&self, owner: &str) -> anyhow::Result<()> {
        files().write(owner, &serde_json::to_string(self)?, Writing::All)
    }

    /// Retires (renames) the record of the attachment with the tag `owner`: its link has left the
    /// sandbox. [`Self::find`] returns `None` then, [`Self::all`] still names the attachment.
    pub fn retire(owner: &str) {
        files().retire(owner);
    }

    /// Removes the record of the attachment with the tag `owner`, if there is one.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub fn remove(owner: &str) -> anyhow::Result<()> {
        files().retire(owner).remove()
    }

    /// Returns whether the sandbox exists.
    pub fn presence(&self) -> Presence {
        let path = self.netns.display();
        let is_of_this_boot = boot_id().is_ok_and(|it| it == self.boot);
        match Connection::open_if_present(&self.netns) {
            Ok(Some((namespace, connection)))
                if is_of_this_boot && self.has_identity(&connection, &self.netns) =>
            {
                Presence::Present(namespace, connection)
            }
            // The path of a process, or a link to it, may lead to another process by now, while
            // yet others keep the namespace.
            Ok(_) if self.is_of_process() => Presence::Unknown(format!(
                "{path} leads to the sandbox no more, but other processes may keep it"
            )),
            Ok(Some(_)) if is_of_this_boot => Presence::Gone,
            Ok(Some(_)) => Presence::Unknown(format!("{path} is a sandbox, but the boot differs")),
            Ok(None) if self.mounts.is_some() && self.mounts == mounts() => Presence::Gone,
            Ok(None) => Presence::Unknown(format!(
                "{path} is missing, but this process sees other mounts than the plugin at ADD"
            )),
            Err(error) => Presence::Unknown(format!("{:#}", anyhow::Error::from(error))),
        }
    }

    /// Opens a wary connection in the sandbox at `netns`, or else at the path of ADD. Returns `None`
    /// if it is at neither path.
    ///
    /// # Errors
    /// A path exists, and its namespace cannot be entered.
    pub fn open(&self, netns: Option<&Path>) -> anyhow::Result<Option<(Netns, Connection)>> {
        for path in netns.into_iter().chain([self.netns.as_path()]) {
            if let Some((namespace, connection)) = Connection::open_if_present(path)?
                && self.is_of(&connection, path)?
            {
                let connection = namespace.run(Connection::open_wary)??;
                return Ok(Some((namespace, connection)));
            }
        }
        Ok(None)
    }

    /// Returns whether the namespace at `path`, to which `connection` leads, is the one of this
    /// record.
    ///
    /// # Errors
    /// The boot ID cannot be read.
    pub fn is_of(&self, connection: &Connection, path: &Path) -> anyhow::Result<bool> {
        Ok(boot_id()? == self.boot && self.has_identity(connection, path))
    }

    /// Returns whether both records are of the same namespace.
    pub(crate) fn is_same_sandbox(&self, other: &Self) -> bool {
        let is_same = match (self.cookie, other.cookie) {
            (Some(one), Some(other)) => one == other,
            _ => self.file.is_some() && self.file == other.file,
        };
        is_same && self.boot == other.boot
    }

    fn has_identity(&self, connection: &Connection, path: &Path) -> bool {
        match (self.cookie, connection.namespace_cookie()) {
            (Some(then), Some(now)) => then == now,
            _ => self.file.is_some() && self.file == identity(fs::metadata(path)),
        }
    }

    /// Returns whether the path is that of a process, or a link to one. The file of a namespace below
    /// /proc is itself a link, whose target is no path.
    fn is_of_process(&self) -> bool {
        let target = fs::read_link(&self.netns).ok();
        let mut paths = [Some(&self.netns), target.as_ref()].into_iter().flatten();
        paths.any(|it| it.starts_with("/proc"))
    }
}

fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

/// Returns the mount namespace of this process; `None` if it cannot be read.
fn mounts() -> Option<PathBuf> {
    fs::read_link("/proc/self/ns/mnt").ok()
}

const DIRECTORY: &str = "/run/cni/witness";
