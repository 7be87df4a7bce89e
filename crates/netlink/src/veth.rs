//! Veth pairs, created in their final namespaces.

use netlink_packet_route::link::LinkAttribute;
use netns::Netns;

use crate::link::message;
use crate::links::{link_named, link_numbered};
use crate::new_links::{attributes, create, pair_with};
use crate::{Connection, Error, Link, LinkChange, LinkKind, MacAddress, Request, found};

/// One end of a veth pair to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VethEnd<'a> {
    /// Name of the end.
    pub name: &'a str,
    /// MAC of the end. The caller has to choose one because udev rewrites a MAC that the kernel
    /// chose.
    pub mac: MacAddress,
}

/// A veth pair to be created: a host end and a container end, both down at first.
#[derive(Debug, Clone, Copy)]
pub struct VethPair<'a> {
    /// The end on the host.
    pub host: VethEnd<'a>,
    /// The end in the sandbox.
    pub container: VethEnd<'a>,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Index of the bridge that the host end joins; `None` for no bridge.
    pub master: Option<u32>,
    /// Alias (`ifalias`) of the host end, in which the caller names the owner of the pair.
    pub alias: &'a str,
    /// Namespace in which the kernel creates the container end. To create the end in another
    /// namespace and then move it would take 15 ms or more.
    pub sandbox: &'a Netns,
}

impl Connection {
    /// Creates both ends of a veth pair in their namespaces, down, then carries out `changes`.
    /// Returns the host end and the bridge that it joins (`None` for no bridge), both in their
    /// state after the changes.
    ///
    /// Equivalent to `ip link add … master … type veth peer … netns …`.
    ///
    /// # Errors
    /// [`Error::Refused`], for example if a name is taken or the bridge is full.
    pub fn add_veth(
        &self,
        pair: &VethPair<'_>,
        changes: Vec<Request>,
    ) -> Result<(Link, Option<Link>), Error> {
        let read = link_named(pair.host.name);
        let missing = read.unanswered("no link in the answer");
        let mut requests = pair.requests();
        requests.extend(changes);
        requests.push(read);
        requests.extend(pair.master.map(link_numbered));
        let mut links = self.objects(&requests, Link::from_answer)?.into_iter();
        match (links.next(), links.next()) {
            (Some(port), master) if master.is_some() == pair.master.is_some() => Ok((port, master)),
            _ => Err(missing),
        }
    }

    /// Returns the other end of the veth pair that `link` belongs to. Returns `None` if `link` is
    /// not a veth link, if the other end is not in this connection's namespace, or if both ends are
    /// in one namespace. The caller guarantees that `link` is in `namespace`.
    ///
    /// The peer index of `link` may also be the index of an unrelated link in this namespace,
    /// because a process in a sandbox can create links with any index. So this function accepts the
    /// link with that index only if it is a veth link that points back: its peer has the index of
    /// `link` and is in `namespace`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn other_end(&self, link: &Link, namespace: &Netns) -> Result<Option<Link>, Error> {
        let Some(index) = link.peer.filter(|_| link.kind == LinkKind::Veth) else {
            return Ok(None);
        };
        let Some(peer) = found(self.link_by_index(index))? else {
            return Ok(None);
        };
        let leads_back = peer.kind == LinkKind::Veth
            && peer.peer == Some(link.index)
            && peer.peer_namespace.is_some()
            && peer.peer_namespace == self.namespace_id(namespace)?;
        Ok(Some(peer).filter(|_| leads_back))
    }
}

impl VethPair<'_> {
    /// Returns two requests: the first creates both ends, the second sets the alias of the host
    /// end. Two are necessary because the kernel ignores an alias in the first request.
    fn requests(&self) -> Vec<Request> {
        let (host, container) = (self.host, self.container);
        let peer = attributes(container.name, container.mac, self.mtu);
        let mut attributes = attributes(host.name, host.mac, self.mtu);
        attributes.extend(self.master.map(LinkAttribute::Controller));
        attributes.push(LinkAttribute::LinkInfo(pair_with(peer, self.sandbox)));
        let both = format!("{} with peer {}", host.name, container.name);
        vec![
            create("veth", &both, &message(0, attributes)),
            Request::change_link(host.name, &LinkChange::Alias(self.alias)),
        ]
    }
}
