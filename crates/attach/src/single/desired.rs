//! The desired state of an interface without a pair.

use anyhow::{Context as _, bail};
use cni::result::{AddResult, Dns};
use cni::{Attachment, CniArgs, Error, InterfaceName, Network, hex};
use facts::MissingFeature;
use netlink::{Connection, Link, LinkKind, MacAddress, NewKind, NewLink, Route};

use super::tap::NewTap;
use crate::{MAIN_TABLE, MtuChoice};

/// An interface plugin whose link lives in the sandbox alone.
pub trait SandboxLink {
    /// Reads the configuration and the arguments of the runtime.
    ///
    /// # Errors
    /// Codes 2, 4 and 7; the error names the key and the value.
    fn parse(network: &Network, args: &CniArgs) -> Result<Single, Error>;

    /// Returns whether the plugin makes links of this kind. DEL and GC delete no others.
    fn makes(kind: &LinkKind) -> bool;

    /// Returns whether the plugin may have made the link.
    fn makes_link(link: &Link) -> bool {
        Self::makes(&link.kind)
    }
}

/// The desired state of an interface without a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Single {
    /// Kind of link.
    pub kind: Kind,
    /// The link below; `None` if the kind has none.
    pub parent: Option<Parent>,
    /// MAC of the link.
    pub mac: Mac,
    /// MTU in bytes, at most that of the parent; `None` for the kernel's choice.
    pub mtu: Option<u32>,
    /// Where the addresses come from.
    pub addresses: Addresses,
    /// DNS settings that replace those of the IPAM plugin.
    pub dns: Option<Dns>,
}

/// Kind of link, and the way to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// One that netlink makes.
    Netlink(NewKind),
    /// One that `/dev/net/tun` makes.
    Tap(NewTap),
}

impl From<NewKind> for Kind {
    fn from(kind: NewKind) -> Self {
        Self::Netlink(kind)
    }
}

/// The link below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Its name. `None` for the first interface in `prevResult` at this place, or without
    /// `prevResult` the link of a default route.
    pub name: Option<InterfaceName>,
    /// Where it is.
    pub place: Place,
}

/// Where a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the namespace of the plugin.
    Host,
    /// `linkInContainer`: in the sandbox.
    Sandbox,
}

/// MAC of a link without a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mac {
    /// This one.
    Asked(MacAddress),
    /// One that follows from the attachment.
    Derived,
    /// The parent's.
    OfParent,
}

/// Where the addresses of a link without a pair come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// From the IPAM plugin, if there is one. Without one, the container configures its link.
    Optional,
    /// From the IPAM plugin, which is required.
    Required,
    /// From the IPAM plugin, or without one from `prevResult`.
    OrPrevious,
}

impl Parent {
    /// Parses the keys `master` and `linkInContainer`.
    ///
    /// # Errors
    /// Code 7: `master` is no name of a link.
    pub fn parse(master: &str, link_in_container: bool) -> Result<Self, Error> {
        let name = (!master.is_empty()).then(|| cni::keys::parsed(master, "master"));
        let place = if link_in_container {
            Place::Sandbox
        } else {
            Place::Host
        };
        Ok(Self {
            name: name.transpose()?,
            place,
        })
    }

    /// Returns the link, which is in the namespace of `connection`.
    pub(super) fn find(
        &self,
        connection: &Connection,
        prev: Option<&AddResult>,
    ) -> anyhow::Result<Link> {
        let place = match self.place {
            Place::Host => "on the host",
            Place::Sandbox => "in the sandbox",
        };
        let name = match (&self.name, prev.and_then(|it| self.first_of(it))) {
            (Some(name), _) => name.as_str(),
            (None, Some(name)) => name,
            (None, None) => return default_link(connection, place),
        };
        let link = connection.find_link(name)?;
        let missing = || Error::invalid("master", format!("there is no link {name} {place}"));
        Ok(link.ok_or_else(missing)?)
    }

    fn first_of<'r>(&self, prev: &'r AddResult) -> Option<&'r str> {
        let is_inside = self.place == Place::Sandbox;
        let mut interfaces = prev.interfaces.iter();
        let first = interfaces.find(|it| it.sandbox.is_some() == is_inside && it.name != "lo");
        first.map(|it| it.name.as_str())
    }
}

impl Single {
    /// Returns the parent, if the kind has one.
    pub(super) fn find_parent(
        &self,
        [host, sandbox]: [&Connection; 2],
        prev: Option<&AddResult>,
    ) -> anyhow::Result<Option<Link>> {
        let Some(parent) = &self.parent else {
            return Ok(None);
        };
        let connection = match parent.place {
            Place::Host => host,
            Place::Sandbox => sandbox,
        };
        parent.find(connection, prev).map(Some)
    }

    /// Returns whether a link is as desired, apart from its parent, MAC, MTU and what a tap has of
    /// its own.
    pub(super) fn is_kind(&self, kind: &LinkKind) -> bool {
        match &self.kind {
            Kind::Netlink(desired) => *kind == desired.made(),
            Kind::Tap(_) => matches!(kind, LinkKind::Tap(_)),
        }
    }

    /// Returns the kind and the parent, for messages and the record.
    pub(super) fn words(&self, parent: Option<&Link>) -> String {
        let kind = match &self.kind {
            Kind::Netlink(kind) => kind.made().to_string(),
            Kind::Tap(new) => new.tap.to_string(),
        };
        parent.map_or_else(|| kind.clone(), |it| format!("{kind} of {}", it.name))
    }
}

/// Returns the link of the default route that the kernel uses first. If it has no MAC, like the tunnel
/// of a VPN, it carries no link of these kinds: then that of the best default route in the table `main`.
fn default_link(connection: &Connection, place: &str) -> anyhow::Result<Link> {
    let read = |index| connection.link_by_index(index).context(READ);
    let routes = connection.default_routes_in_use()?;
    let Some(first) = routes.iter().flat_map(Route::links).next() else {
        let reason = format!("there is no default route {place}, so name the link");
        bail!(Error::invalid("master", reason));
    };
    let first = read(first)?;
    if first.mac.is_some() {
        return Ok(first);
    }
    let mut main = connection.default_routes()?;
    main.retain(|it| it.table == MAIN_TABLE);
    main.sort_by_key(|it| it.priority);
    for index in main.iter().flat_map(Route::links) {
        let link = read(index)?;
        if link.mac.is_some() {
            return Ok(link);
        }
    }
    Ok(first)
}

const READ: &str = "read the link of the default route";

/// Returns the name that a link has until ADD renames it, if the host has a link of the final name.
pub(super) fn first_name(attachment: &Attachment) -> String {
    format!("new{}", hex(&attachment.digest(), 12))
}

/// Parses the key `mtu`, in bytes; 0 leaves the choice to the kernel.
///
/// # Errors
/// Code 7: the value is out of range.
pub fn mtu(mtu: u32) -> Result<Option<u32>, Error> {
    match MtuChoice::parse(mtu, 0)? {
        MtuChoice::Asked(mtu) => Ok(Some(mtu)),
        MtuChoice::Detect { .. } => Ok(None),
    }
}

/// Tries to make a link of this kind in this thread's network namespace, for `plugin`. Returns what
/// the kernel lacks.
///
/// # Errors
/// The network namespace cannot be opened.
pub fn missing_features(
    kind: NewKind,
    feature: &str,
    plugin: &'static str,
) -> anyhow::Result<Vec<MissingFeature>> {
    let connection = Connection::open()?;
    // Any Ethernet link can be a parent. If the kernel lacks bridges, it says so for `bridge`.
    let parent = format!("{plugin}-parent");
    let bridge = NewLink::of(&parent, NewKind::Bridge);
    if connection.add_link(&bridge).is_err() {
        return Ok(Vec::new());
    }
    let link = NewLink {
        parent: Some(connection.link(&parent)?.index),
        ..NewLink::of(plugin, kind)
    };
    let tried = connection.add_link(&link);
    Ok(MissingFeature::of(tried, feature, &[]))
}

/// Returns a MAC that follows from the attachment alone, so that an IPAM plugin may use the link.
pub(super) fn derived_mac(attachment: &Attachment) -> MacAddress {
    crate::derived_mac(&[], attachment)
}
