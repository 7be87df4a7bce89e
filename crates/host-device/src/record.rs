//! Records of devices that attachments have: each device as it was on the host.
//!
//! A record is written before the device leaves the host, and removed after it is back as it was.
//! DEL and GC retire (rename) the record first, so a retired record means a device that did not
//! return completely. The records are below `/run`, because a reboot brings every device back; a
//! record of another boot is void.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use attach::{OwnerFiles, Presence, Retired, Witness, Writing};
use cni::files::boot_id;
use cni::{AddRequest, Attachment, GOING_ON, or_note};
use netlink::{Connection, Link, LinkChange, LinkKind, MacAddress, Multicast, SavedAddress};
use netns::Netns;
use serde::{Deserialize, Serialize};

use crate::config::Selector;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The attachment's tag.
    #[serde(skip)]
    pub owner: String,
    /// ID of the boot in which the device left.
    boot: String,
    /// Path of the sandbox.
    pub netns: PathBuf,
    /// What named the device, as [`Selector`] displays it.
    #[serde(default)]
    pub selector: String,
    /// The device as it was.
    pub device: Former,
}

/// A device as it was on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Former {
    pub name: String,
    /// Index on the host, and in the sandbox once ADD has seen it there.
    pub index: u32,
    #[serde(default)]
    pub alternative_names: Vec<String>,
    kind: String,
    permanent_mac: Option<String>,
    parent_device: Option<String>,
    peer: Option<u32>,
    has_peer_on_host: bool,
    pub mac: Option<String>,
    pub mtu: u32,
    pub is_up: bool,
    pub is_promiscuous: bool,
    pub all_multicast: bool,
    pub transmit_queue: u32,
    pub alias: Option<String>,
    /// Name of the bridge, bond or VRF of the device.
    pub master: Option<String>,
    /// Addresses, except those that the kernel or a DHCP client adds again.
    #[serde(default)]
    pub saved_addresses: Vec<SavedAddress>,
}

impl Record {
    /// Describes the host's `link`, which `selector` names and which is about to move to the sandbox of
    /// `request`.
    pub fn new(
        request: &AddRequest,
        host: &Connection,
        (selector, link): (&Selector, &Link),
    ) -> anyhow::Result<Self> {
        let master = link.master.map(|it| host.link_by_index(it)).transpose()?;
        let mut saved_addresses = host.saved_addresses(link.index)?;
        saved_addresses.retain(|it| !it.address.is_link_local && !it.address.expires);
        Ok(Self {
            owner: request.attachment.owner(),
            boot: boot_id()?,
            netns: request.netns.clone(),
            selector: selector.to_string(),
            device: Former {
                master: master.map(|it| it.name),
                saved_addresses,
                ..Former::of(link)
            },
        })
    }

    /// Describes `link` in the sandbox `netns`, which the reference moved there for the attachment `owner`.
    /// Only its name on the host is known.
    pub fn of_reference(
        owner: String,
        link: &Link,
        (name, netns): (String, &Path),
    ) -> anyhow::Result<Self> {
        Ok(Self {
            owner,
            boot: boot_id()?,
            netns: netns.to_owned(),
            selector: String::new(),
            device: Former {
                name,
                alias: None,
                is_up: false,
                has_peer_on_host: false,
                ..Former::of(link)
            },
        })
    }

    /// Returns the record of the attachment `owner`; `None` if there is none, or if it is void: of
    /// another boot, or invalid, which is reported on standard error.
    ///
    /// # Errors
    /// The boot's ID cannot be read.
    pub fn find(owner: &str) -> anyhow::Result<Option<Self>> {
        Self::parse(owner, files().find(owner).ok().as_deref())
    }

    /// Retires the record of the attachment `owner`, and returns it as [`Self::find`] does.
    ///
    /// # Errors
    /// As [`Self::find`], or the record cannot be read.
    pub fn retire(owner: &str) -> anyhow::Result<(Retired, Option<Self>)> {
        let retired = files().retire(owner).expect_read()?;
        let record = Self::parse(owner, retired.text())?;
        Ok((retired, record))
    }

    fn parse(owner: &str, text: Option<&str>) -> anyhow::Result<Option<Self>> {
        let boot = boot_id()?;
        let record = text.map(serde_json::from_str).transpose();
        let record = record.with_context(|| format!("parse the record of {owner} in {DIRECTORY}"));
        let record: Option<Self> = or_note(record, GOING_ON).flatten();
        let record = record.filter(|it| it.boot == boot);
        let owner = owner.to_owned();
        Ok(record.map(|it| Self { owner, ..it }))
    }

    /// Returns whether `selector` names the device, as far as the record shows that.
    pub fn is_named(&self, selector: &Selector) -> bool {
        let former = &self.device;
        let is_same = self.selector == selector.to_string();
        is_same
            || match selector {
                Selector::Name(name) => {
                    former.name == *name || former.alternative_names.contains(name)
                }
                Selector::Mac(mac) => former.mac == Some(mac.to_string()),
                Selector::Directory(directory) => {
                    let directory = directory.file_name().and_then(|it| it.to_str());
                    directory.is_some() && directory == former.parent_device.as_deref()
                }
                Selector::UserSpace => false,
            }
    }

    /// Writes the first record of the attachment, in place of a void one. Returns `false`, and changes
    /// nothing, if there is a valid one.
    pub fn create(&self) -> anyhow::Result<bool> {
        let owner = &self.owner;
        if let Ok(text) = files().find(owner)
            && Self::parse(owner, Some(&text))?.is_none()
        {
            files().remove(owner)?;
        }
        files().create(owner, &serde_json::to_string(self)?)
    }

    /// Replaces the record of the attachment.
    pub fn write(&self) -> anyhow::Result<()> {
        files().write(&self.owner, &serde_json::to_string(self)?, Writing::All)
    }

    /// Returns the valid records. Also returns retired ones.
    pub fn all() -> anyhow::Result<Vec<Self>> {
        let owners = files().owners()?.into_iter();
        let records = owners.map(|it| Self::parse(&it, files().find_also_retired(&it).as_deref()));
        records.filter_map(Result::transpose).collect()
    }

    /// Returns the alias of the device from its move back to the host until it has its name there.
    pub fn mark(&self) -> String {
        format!("device of {}", self.owner)
    }

    /// Returns the host's link that is this device. A virtual link is recognised by its mark, or by its index
    /// and name.
    pub fn find_on_host(&self, host: &Connection) -> anyhow::Result<Option<Link>> {
        let (device, mark) = (&self.device, self.mark());
        device.search(host, |it| {
            it.alias.as_ref() == Some(&mark)
                || it.index == device.index && (device.has_identity() || it.name == device.name)
        })
    }

    /// Returns whether `link`, which [`Self::find_on_host`] found, has returned from a sandbox with this
    /// presence. If it has not, ADD may be about to move it.
    pub fn has_returned(&self, link: &Link, presence: &Presence) -> bool {
        link.alias.as_ref() == Some(&self.mark()) || matches!(presence, Presence::Gone)
    }
}

impl Former {
    /// Describes `link`, except for its addresses and its master.
    pub fn of(link: &Link) -> Self {
        let text = |mac: Option<MacAddress>| mac.map(|it| it.to_string());
        Self {
            name: link.name.clone(),
            index: link.index,
            alternative_names: link.alternative_names.clone(),
            kind: link.kind.to_string(),
            permanent_mac: text(link.permanent_mac),
            parent_device: link.parent_device.clone(),
            peer: link.peer,
            has_peer_on_host: link.peer.is_some() && link.peer_namespace.is_none(),
            mac: text(link.mac),
            mtu: link.mtu,
            is_up: link.is_up,
            is_promiscuous: link.is_promiscuous,
            all_multicast: link.multicast == Multicast::All,
            transmit_queue: link.transmit_queue,
            alias: link.alias.clone(),
            master: None,
            saved_addresses: Vec::new(),
        }
    }

    /// Returns the changes that give a link the settings of the device.
    pub fn settings(&self) -> Vec<LinkChange<'static>> {
        let mac = self.mac.as_ref().and_then(|it| it.parse().ok());
        let settings = [
            LinkChange::Mtu(self.mtu),
            LinkChange::Promiscuous(self.is_promiscuous),
            LinkChange::AllMulticast(self.all_multicast),
            LinkChange::TransmitQueue(self.transmit_queue),
        ];
        let mac = mac.map(LinkChange::Mac);
        mac.into_iter().chain(settings).collect()
    }

    /// Returns whether the kernel keeps the device when its namespace ends: it then returns to the
    /// initial namespace. A virtual link is deleted with its namespace.
    pub fn is_physical(&self) -> bool {
        self.kind == LinkKind::Physical.to_string()
    }

    /// Returns the link in a sandbox that is this device, whatever its name is now.
    ///
    /// Processes in the sandbox can give a link any name, MAC, alias and index. They cannot make a
    /// link with the permanent MAC or the parent device of hardware. They can replace a virtual
    /// link, but only by one of the same kind, and with the same parent if it has one on the host.
    pub fn find_in(&self, sandbox: &Connection) -> anyhow::Result<Option<Link>> {
        let known = sandbox.find_link_by_index(self.index)?;
        let link = match known.filter(|it| self.is_like(it)) {
            None => self.search(sandbox, |it| it.alias.as_ref() == Some(&self.name))?,
            known => known,
        };
        if link.is_none() || !self.has_peer_on_host {
            return Ok(link);
        }
        let number = sandbox.namespace_id(&Netns::own()?)?;
        Ok(link.filter(|it| number.is_some() && it.peer_namespace == number))
    }

    /// Returns the link that is like this device, if only one can be. Otherwise, `is_it` chooses.
    fn search(
        &self,
        connection: &Connection,
        is_it: impl Fn(&Link) -> bool,
    ) -> anyhow::Result<Option<Link>> {
        let mut same = connection.links()?;
        same.retain(|it| self.is_like(it));
        if !(self.has_identity() && same.len() == 1) {
            same.retain(is_it);
        }
        Ok(same.into_iter().next())
    }

    /// Returns what the absence of the device from host and sandbox means.
    pub fn absence(&self) -> &'static str {
        if self.is_physical() {
            "is neither on the host nor in the sandbox"
        } else {
            "is missing: it was a virtual link, which the kernel deletes with its sandbox"
        }
    }

    fn has_identity(&self) -> bool {
        let has_mark = self.permanent_mac.is_some() || self.parent_device.is_some();
        self.is_physical() && has_mark
    }

    /// Returns whether `link` has the kind, the parent and the permanent MAC of the device.
    pub fn is_like(&self, link: &Link) -> bool {
        self.is_same(&Self::of(link))
    }

    /// Returns whether both have the same kind, parent and permanent MAC.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.permanent_mac == other.permanent_mac
            && self.parent_device == other.parent_device
            && self.peer == other.peer
    }
}

/// Returns whether the sandbox of the attachment `owner`, perhaps at `place`, exists. If no ADD of this plugin
/// recorded it, as after an ADD of the reference, the sandbox is the one at `place`.
///
/// # Errors
/// The sandbox at `place` cannot be entered.
pub(crate) fn presence(owner: &str, place: Option<&Path>) -> anyhow::Result<Presence> {
    Ok(match Witness::find(owner) {
        Ok(Some(witness)) => witness.presence_at_removal(place),
        Ok(None) => match place.map(|it| enter(owner, it)).transpose()?.flatten() {
            Some((namespace, sandbox)) => Presence::Present(namespace, sandbox),
            None => Presence::Gone,
        },
        Err(error) => Presence::Unknown(format!("{error:#}")),
    })
}

/// Opens the sandbox at `netns`, in which the attachment `owner` may have a device although no ADD of this
/// plugin recorded it. Returns `None` if there is none, or if another attachment has the interface of this
/// name there.
///
/// # Errors
/// The sandbox cannot be entered.
pub(crate) fn enter(owner: &str, netns: &Path) -> anyhow::Result<Option<(Netns, Connection)>> {
    let interface_of = |it: &str| Attachment::of_owner(it).map(|it| it.interface);
    let interface = interface_of(owner);
    let Some((namespace, sandbox)) = Connection::open_if_present(netns)? else {
        return Ok(None);
    };
    for (other, witness) in Witness::all()? {
        if other != owner
            && interface_of(&other) == interface
            && let Ok(Some(witness)) = witness
            && witness.is_of(&sandbox, netns)?
        {
            return Ok(None);
        }
    }
    Ok(Some((namespace, sandbox)))
}

pub(crate) fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

const DIRECTORY: &str = "/run/cni/host-device";
