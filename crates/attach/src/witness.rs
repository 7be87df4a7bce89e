//! Witnesses: records of the sandboxes of links that have no end on the host.
//!
//! Such a link leaves nothing on the host that proves that it exists. So ADD records the sandbox
//! before it makes the link, and DEL and GC remove the record after the link.
//!
//! The path of a sandbox may lead to another namespace later, or to none while processes or sockets keep
//! the sandbox. So ADD numbers the namespace (nsid): as long as it exists, the host finds it by
//! its number. A sandbox whose state is unknown counts as existing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cni::files::boot_id;
use netlink::{Connection, Link};
use netns::Netns;
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::{OwnerFiles, Writing};

/// The record of a sandbox in which an attachment has a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// `CNI_NETNS` of the ADD.
    pub netns: PathBuf,
    /// The link and its parent, in words.
    pub link: String,
    #[serde(flatten)]
    namespace: Identity,
    /// The cookie of the plugin's namespace, and the number (nsid) that it uses for the sandbox; `None`
    /// if the kernel has no cookies, or if the plugin may not change that namespace.
    numbered: Option<(u64, i32)>,
    /// ID of the boot (random(4)).
    boot: String,
    /// The mount namespace in which [`Self::netns`] is a path.
    mounts: Option<PathBuf>,
    /// The attachment's tag; empty before the record is written.
    #[serde(skip)]
    pub(crate) owner: String,
}

/// Whether the sandbox of a [`Witness`] exists.
pub enum Presence {
    /// It exists. The fields are the namespace and a connection to the kernel in it.
    Present(Netns, Connection),
    /// It exists no more, and with it the link.
    Gone,
    /// It exists, and the host uses the number in the field for it: ADD gave this number, or a link there has
    /// the attachment's tag. This process sees no process in it, so perhaps sockets keep it.
    Deserted(i32),
    /// This process cannot find out. The field is the reason.
    Unknown(String),
}

impl Presence {
    /// Returns why the sandbox may exist; `None` if it does not.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Present(..) => Some("its sandbox exists".to_owned()),
            Self::Gone => None,
            Self::Deserted(number) => Some(format!(
                "namespace {number} exists, without a process that is seen"
            )),
            Self::Unknown(reason) => Some(reason.clone()),
        }
    }
}

impl Witness {
    /// Returns the record of an attachment whose `link` is in `namespace`, to which `inside` leads.
    ///
    /// # Errors
    /// The boot ID cannot be read.
    pub fn new(namespace: &Netns, inside: &Connection, link: String) -> anyhow::Result<Self> {
        Ok(Self {
            netns: namespace.path().to_owned(),
            link,
            namespace: Identity::of(inside, namespace.path()),
            numbered: None,
            boot: boot_id()?,
            mounts: mounts(),
            owner: String::new(),
        })
    }

    /// Adds the number that the namespace of `host`, which is the plugin's, uses for `namespace`.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn numbered(self, host: &Connection, namespace: &Netns) -> anyhow::Result<Self> {
        let Some((observer, wanted)) = host.namespace_cookie().zip(self.namespace.number()) else {
            return Ok(self);
        };
        let number = host.number_namespace(namespace, wanted)?;
        let numbered = number.map(|it| (observer, it));
        Ok(Self { numbered, ..self })
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
        let witness = serde_json::from_str::<Self>(&files().find(owner)?);
        let read = || {
            format!(
                "parse the record of {owner} in {DIRECTORY}; delete it once the container has ended"
            )
        };
        let witness = witness.with_context(read)?;
        Ok(Some(Self {
            owner: owner.to_owned(),
            ..witness
        }))
    }

    /// Returns the records of all attachments by their tags, or the reason why a record cannot be
    /// read. The record is `None` if a killed ADD or DEL left a part of it, while there is no link.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all() -> anyhow::Result<BTreeMap<String, anyhow::Result<Option<Self>>>> {
        Ok(Self::each()?.collect())
    }

    /// Returns the records of [`Self::all`] one by one.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn each()
    -> anyhow::Result<impl Iterator<Item = (String, anyhow::Result<Option<Self>>)>> {
        let owners = files().owners()?.into_iter();
        Ok(owners.map(|owner| {
            let witness = Self::find(&owner);
            (owner, witness)
        }))
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
        let opened = Connection::open_if_present(&self.netns);
        match opened {
            Ok(Some((namespace, connection)))
                if self.is_of_this_boot().unwrap_or_default()
                    && self.has_identity(&connection, &self.netns) =>
            {
                Presence::Present(namespace, connection)
            }
            opened => {
                let opened = opened.map(|it| it.is_some());
                match self.presence_by_number() {
                    Ok(Some(presence)) => presence,
                    Ok(None) => self.presence_by_path(opened),
                    Err(error) => Presence::Unknown(format!("{error:#}")),
                }
            }
        }
    }

    /// Returns [`Self::presence`] for DEL and GC, which looks at the path `netns` first. If no process is seen in
    /// the sandbox, looks for it among what processes elsewhere have open or mounted. If only sockets keep it,
    /// waits a moment for its end.
    pub fn presence_at_removal(&self, netns: Option<&Path>) -> Presence {
        if let Some(path) = netns
            && let Ok(Some((namespace, connection))) = Connection::open_if_present(path)
            && self.is_of(&connection, path).unwrap_or_default()
        {
            return Presence::Present(namespace, connection);
        }
        let ends = || {
            let host = Connection::open()?;
            let number = self.number(&host);
            number.map_or(Ok(false), |it| host.has_ended_within(it, PATIENCE))
        };
        let presence = self.presence();
        if let Presence::Deserted(number) = presence
            && let Some((namespace, connection)) = open_kept(number)
        {
            return Presence::Present(namespace, connection);
        }
        match presence {
            Presence::Deserted(_) | Presence::Unknown(_) if ends().unwrap_or_default() => {
                Presence::Gone
            }
            presence => presence,
        }
    }

    /// Deletes the links that `is_made` accepts in the deserted sandbox with this number. Returns whether
    /// there were some, and are none left. A sandbox whose links this process may not list has none.
    ///
    /// # Errors
    /// The kernel refuses to delete a link.
    pub fn delete_links(number: i32, is_made: impl Fn(&Link) -> bool) -> anyhow::Result<bool> {
        // Processes that have ended may have left any number of links.
        let host = Connection::open_wary()?;
        let is_ended = |it: &netlink::Error| it.is_no_namespace() || it.is_not_found();
        let mut links = host.links_in(number).unwrap_or_default();
        links.retain(&is_made);
        for link in &links {
            match host.delete_link_in(number, link) {
                Err(error) if is_ended(&error) => {}
                deleted => deleted?,
            }
        }
        Ok(!links.is_empty()
            && match host.links_in(number) {
                Err(error) if is_ended(&error) => true,
                left => !left?.iter().any(is_made),
            })
    }

    /// Returns the number that the host uses for the sandbox; `None` if `connection` leads to another
    /// namespace than the plugin at ADD was in.
    fn number(&self, connection: &Connection) -> Option<i32> {
        let (observer, number) = self.numbered?;
        let is_same = connection.namespace_cookie() == Some(observer);
        (is_same && self.is_of_this_boot().ok()?).then_some(number)
    }

    /// Returns whether ADD made the link since the last boot.
    ///
    /// # Errors
    /// The boot ID cannot be read.
    pub fn is_of_this_boot(&self) -> anyhow::Result<bool> {
        Ok(boot_id()? == self.boot)
    }

    /// Looks for the sandbox by its number. Returns `None` if the record has none, if the calling thread is
    /// in another namespace than the plugin at ADD, or if another namespace may have the number by now.
    ///
    /// # Errors
    /// The kernel refuses a request, or a process in the namespace cannot be looked into.
    fn presence_by_number(&self) -> anyhow::Result<Option<Presence>> {
        let host = Connection::open()?;
        let Some(number) = self.number(&host) else {
            return Ok(None);
        };
        if !host.has_namespace(number)? {
            return Ok(Some(Presence::Gone));
        }
        // The kernel gives a number that it chose itself to another namespace later.
        let is_given = self.namespace.number() == Some(number);
        let is_sandbox = || is_given || self.has_link_in(number);
        let deserted = || Ok(is_sandbox().then_some(Presence::Deserted(number)));
        let Some(task) = host.task_in(number, &Vec::from_iter(netns::tasks()?))? else {
            return deserted();
        };
        let path = PathBuf::from(format!("/proc/{task}/ns/net"));
        let Some((namespace, inside)) = Connection::open_if_present(&path)? else {
            return deserted();
        };
        // The task may have left the namespace meanwhile.
        if host.namespace_id(&namespace)? != Some(number) {
            return deserted();
        }
        Ok(Some(if self.has_identity(&inside, &path) {
            Presence::Present(namespace, inside)
        } else {
            Presence::Gone
        }))
    }

    /// Returns whether a link in the namespace with this number has the attachment's tag.
    fn has_link_in(&self, number: i32) -> bool {
        let links = Connection::open_wary().and_then(|it| it.links_in(number));
        let links = links.unwrap_or_default();
        links
            .iter()
            .any(|it| it.alias.as_deref() == Some(self.owner.as_str()))
    }

    /// Judges by whether a namespace was `opened` at the path, which is not that of this record.
    fn presence_by_path(&self, opened: Result<bool, netlink::Error>) -> Presence {
        let path = self.netns.display();
        match opened {
            // The path of a process, or a link to it, may lead to another process by now, while
            // yet others keep the namespace.
            Ok(_) if self.is_of_process() => Presence::Unknown(format!(
                "{path} leads to the sandbox no more, but other processes may keep it"
            )),
            Ok(true) if self.is_of_this_boot().unwrap_or_default() => Presence::Gone,
            Ok(true) => Presence::Unknown(format!("{path} is a sandbox, but the boot differs")),
            Ok(false) if self.mounts.is_some() && self.mounts == mounts() => Presence::Gone,
            Ok(false) => Presence::Unknown(format!(
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
        Ok(self.is_of_this_boot()? && self.has_identity(connection, path))
    }

    /// Returns whether both records are of the same namespace.
    pub(crate) fn is_same_sandbox(&self, other: &Self) -> bool {
        self.namespace.is_same(&other.namespace) && self.boot == other.boot
    }

    fn has_identity(&self, connection: &Connection, path: &Path) -> bool {
        self.namespace.is_same(&Identity::of(connection, path))
    }

    /// Returns whether the path is that of a process, or a link to one. It may be below the host's root
    /// directory, as in a container. The file of a namespace below /proc is itself a link, whose target is
    /// no path.
    fn is_of_process(&self) -> bool {
        let target = fs::read_link(&self.netns).ok();
        let mut paths = [Some(&self.netns), target.as_ref()].into_iter().flatten();
        paths.any(|it| it.components().any(|part| part.as_os_str() == "proc"))
    }
}

/// Opens the namespace for which the plugin's one uses this number (nsid), if a process elsewhere has it open or
/// mounted.
fn open_kept(number: i32) -> Option<(Netns, Connection)> {
    let host = Connection::open().ok()?;
    netns::kept().into_iter().find_map(|path| {
        let namespace = Netns::open_untrusted(&path).ok()?;
        let is_it = host.namespace_id(&namespace).ok()? == Some(number);
        let connection = is_it.then(|| Connection::open_in(&namespace))?.ok()?;
        Some((namespace, connection))
    })
}

fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

/// Returns the mount namespace of this process; `None` if it cannot be read.
fn mounts() -> Option<PathBuf> {
    fs::read_link("/proc/self/ns/mnt").ok()
}

const DIRECTORY: &str = "/run/cni/witness";

/// Time for which DEL and GC wait for the end of a sandbox. Packets that wait for a neighbour's address keep
/// their socket for three seconds.
const PATIENCE: Duration = Duration::from_secs(4);
