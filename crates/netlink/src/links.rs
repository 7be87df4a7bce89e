//! Reads, creates and deletes links.

use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use nix::libc::{
    IFLA_ALT_IFNAME, IFLA_EXT_MASK, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_PROP_LIST, IFLA_TARGET_NETNSID, IFNAMSIZ, RTM_DELLINK, RTM_GETLINK,
};

use crate::attributes::Attributes;
use crate::link::message;
use crate::message::Bytes;
use crate::{Connection, Error, Link, LinkChange, LinkKind, Request, found};

impl Connection {
    /// Returns the link called `name`. Equivalent to `ip link show NAME`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_not_found`] holds if the link does not exist.
    pub fn link(&self, name: &str) -> Result<Link, Error> {
        self.one_link(Vec::new(), link_named(name))
    }

    /// Returns the link called `name`, or `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Self::link`], except for a link that does not exist.
    pub fn find_link(&self, name: &str) -> Result<Option<Link>, Error> {
        found(self.link(name))
    }

    /// Returns the link with this index.
    ///
    /// # Errors
    /// As [`Self::link`].
    pub fn link_by_index(&self, index: u32) -> Result<Link, Error> {
        self.one_link(Vec::new(), link_numbered(index))
    }

    /// Returns the link with this index; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::find_link`].
    pub fn find_link_by_index(&self, index: u32) -> Result<Option<Link>, Error> {
        found(self.link_by_index(index))
    }

    /// Returns the links with these names, in the order of `names`, and omits names without a link.
    /// Sends the requests in batches.
    ///
    /// # Errors
    /// [`Error::Refused`], except for a link that does not exist.
    pub fn links_named<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<Link>, Error> {
        let requests: Vec<_> = names.into_iter().map(link_named).collect();
        let outcomes = self.outcomes(&requests)?.into_iter();
        let found = outcomes.map(found).collect::<Result<Vec<_>, _>>()?;
        let answers = found.iter().flatten().flatten();
        Ok(answers.filter_map(Link::from_answer).collect())
    }

    /// Applies `changes` to the link called `name` and returns the changed link.
    ///
    /// # Errors
    /// [`Error::Refused`]: the first refusal. The kernel still carries out the other changes.
    pub fn change_link(&self, name: &str, changes: &[LinkChange<'_>]) -> Result<Link, Error> {
        let changes = changes.iter().map(|it| Request::change_link(name, it));
        self.one_link(changes.collect(), link_named(name))
    }

    /// Returns all links. Equivalent to `ip link show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn links(&self) -> Result<Vec<Link>, Error> {
        self.links_like(Attributes::new())
    }

    /// Returns all links that are not ports of a bridge, bond or other master. On kernels before
    /// Linux 5.15, which cannot filter for this, the list is empty. Equivalent to `ip link show
    /// nomaster`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn links_without_master(&self) -> Result<Vec<Link>, Error> {
        self.links_like(Attributes::new().word(IFLA_MASTER, NONE))
    }

    /// Returns all bridges. Equivalent to `ip link show type bridge`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn bridges(&self) -> Result<Vec<Link>, Error> {
        let kind = Attributes::new().bytes(IFLA_INFO_KIND, b"bridge");
        let mut bridges = self.links_like(Attributes::new().nest(IFLA_LINKINFO, &kind))?;
        bridges.retain(|it| it.kind == LinkKind::Bridge);
        Ok(bridges)
    }

    /// Returns all ports of the bridge with this index. Equivalent to `ip link show master BRIDGE`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn ports(&self, bridge: u32) -> Result<Vec<Link>, Error> {
        let mut ports = self.links_like(Attributes::new().word(IFLA_MASTER, bridge))?;
        ports.retain(|port| port.master == Some(bridge));
        Ok(ports)
    }

    /// Returns the number of ports of the bridge with this index. The kernel describes each port in
    /// fewer bytes than for [`Self::ports`]. Equivalent to `bridge link show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn port_count(&self, bridge: u32) -> Result<usize, Error> {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        let request = Request::list("count ports", RTM_GETLINK, &message);
        let ports = self.objects(&[request], Link::from_answer)?.into_iter();
        let ports = ports.filter(|it| it.master == Some(bridge) && it.index != bridge);
        Ok(ports.count())
    }

    /// Deletes the link and waits until the kernel has freed it. Equivalent to `ip link delete`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_not_found`] holds if the link does not exist.
    pub fn delete_link(&self, link: &Link) -> Result<(), Error> {
        self.delete_index(link.index, format!("delete link {}", link.name))
    }

    /// Returns all links in the namespace for which the namespace of this connection uses the number
    /// `id` (nsid).
    ///
    /// # Errors
    /// [`Error::Refused`], also if there is no such namespace ([`Error::is_no_namespace`]).
    pub fn links_in(&self, id: i32) -> Result<Vec<Link>, Error> {
        self.links_like(Attributes::new().word(IFLA_TARGET_NETNSID, id.cast_unsigned()))
    }

    /// Deletes a link of [`Self::links_in`].
    ///
    /// # Errors
    /// [`Error::Refused`], also if the link does not exist.
    pub fn delete_link_in(&self, id: i32, link: &Link) -> Result<(), Error> {
        let operation = format!("delete link {} in namespace {id}", link.name);
        let message = message(link.index, vec![LinkAttribute::IfNetnsId(id)]);
        self.execute([Request::change(operation, RTM_DELLINK, &message)])
    }

    pub(crate) fn delete_index(&self, index: u32, operation: String) -> Result<(), Error> {
        let message = message(index, Vec::new());
        self.execute([Request::change(operation, RTM_DELLINK, &message)])
    }

    fn links_like(&self, attributes: Attributes) -> Result<Vec<Link>, Error> {
        let request = Request::list("read links", RTM_GETLINK, &question(0, attributes));
        self.objects(&[request], Link::from_answer)
    }

    /// Carries out `changes`, then sends the request `read` and returns the link in its answer.
    pub(crate) fn one_link(&self, changes: Vec<Request>, read: Request) -> Result<Link, Error> {
        let missing = read.unanswered("no link in the answer");
        let requests: Vec<_> = changes.into_iter().chain([read]).collect();
        let links = self.objects(&requests, Link::from_answer)?;
        links.into_iter().next().ok_or(missing)
    }
}

impl Request {
    /// Returns a request that gives the link with this index an alternative name. Equivalent to `ip
    /// link property add … altname NAME`.
    pub fn add_alternative_name(index: u32, name: &str) -> Self {
        let operation = format!("add the alternative name {name} to link number {index}");
        Self::change(operation, RTM_NEWLINKPROP, &alternative_name(index, name))
    }

    /// Returns a request that deletes an alternative name of the link with this index. Equivalent to
    /// `ip link property delete … altname NAME`.
    pub fn delete_alternative_name(index: u32, name: &str) -> Self {
        let operation = format!("delete the alternative name {name} of link number {index}");
        Self::change(operation, RTM_DELLINKPROP, &alternative_name(index, name))
    }
}

fn alternative_name(index: u32, name: &str) -> Bytes {
    let names = Attributes::new().text(IFLA_ALT_IFNAME, name);
    question(index, Attributes::new().nest(IFLA_PROP_LIST, &names))
}

/// Returns the request that reads the link called `name`. The kernel also finds a link by an
/// alternative name. It expects a name that is too long for any other in its own attribute.
pub(crate) fn link_named(name: &str) -> Request {
    let kind = match name.len() {
        ..IFNAMSIZ => IFLA_IFNAME,
        _ => IFLA_ALT_IFNAME,
    };
    let message = question(0, Attributes::new().text(kind, name));
    Request::read(format!("read link {name}"), RTM_GETLINK, &message)
}

/// Returns the request that reads the link with this index.
pub(crate) fn link_numbered(index: u32) -> Request {
    let message = question(index, Attributes::new());
    Request::read(format!("read link number {index}"), RTM_GETLINK, &message)
}

/// Returns a message (`struct ifinfomsg` and attributes) that asks for links without their
/// counters. No caller uses the counters, and they would be a large part of the kernel's answer.
fn question(index: u32, attributes: Attributes) -> Bytes {
    let attributes = attributes.word(IFLA_EXT_MASK, SKIP_STATISTICS);
    let header = [0, index, 0, 0].map(u32::to_ne_bytes);
    Bytes([header.as_flattened(), &attributes].concat())
}

// Of `include/uapi/linux/rtnetlink.h`.
const RTM_NEWLINKPROP: u16 = 108;
const RTM_DELLINKPROP: u16 = 109;

/// `RTEXT_FILTER_SKIP_STATS`
const SKIP_STATISTICS: u32 = 8;

/// Value of the attribute `IFLA_MASTER` that selects links without a master (`link_master_filtered`
/// in net/core/rtnetlink.c).
const NONE: u32 = u32::MAX;
