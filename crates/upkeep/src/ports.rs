//! Finds host ends of veth pairs that no longer look as ADD left them, and ports of bridges that no
//! ADD made.

use std::collections::BTreeSet;

use attach::{host_link_name, is_host_end};
use cni::Attachment;
use netlink::{Link, LinkKind};
use node::{Node, owner_of};

/// The host's end of a veth pair that has not the name that ADD gave it. What `nf_tables` knows by
/// the old name does not concern it: `macspoofchk`, `isolated` and the backstop of `bandwidth`.
/// RELOAD adds elements with the present name.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{name} is {former} of {}, renamed", attachment.owner())]
pub struct Renamed<'n> {
    /// The attachment.
    pub attachment: &'n Attachment,
    /// The link's present name.
    pub name: &'n str,
    /// The name that ADD gave the link.
    pub former: String,
}

impl<'n> Renamed<'n> {
    /// Returns the renamed host ends of live attachments that a runtime's cache has.
    pub fn all(node: &'n Node) -> Vec<Self> {
        let of = |attachment: &'n Attachment| {
            let former = host_link_name(attachment);
            let is_renamed = |it: &&Link| it.name != former && is_host_end(it, attachment);
            let link = node.links.iter().find(is_renamed)?;
            Some(Self {
                attachment,
                name: &link.name,
                former,
            })
        };
        let live = node.alive().map(|it| &it.attachment);
        live.filter_map(of).collect()
    }
}

/// A port of a configured bridge that belongs to no known attachment. No MAC check, isolation and
/// limit holds for it. A pod with `CAP_NET_ADMIN` that has no user namespace of its own can add one.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{name} is a port of {bridge}, but belongs to no attachment")]
pub struct UnknownPort<'n> {
    /// The port's name.
    pub name: &'n str,
    /// The bridge's name.
    pub bridge: &'n str,
}

impl<'n> UnknownPort<'n> {
    /// Returns the ports of the configured bridges that nothing explains. These explain a port:
    ///
    /// - The cached result of a live attachment names it, or it is the attachment's renamed host
    ///   end.
    /// - Its name and its tag are those of an attachment with a lease, whose ADD may be running. ADD
    ///   with another IPAM plugin is not recognised, so a port may be strange for a moment.
    /// - It is a network card, a VLAN link or a bond, which connects the bridge to other hosts.
    pub fn all(node: &'n Node) -> Vec<Self> {
        let live: Vec<_> = node.alive().collect();
        let reported = live.iter().flat_map(|it| it.entry.host_links());
        let reported: BTreeSet<_> = reported.collect();
        let is_explained = |port: &Link| {
            reported.contains(&port.name)
                || is_uplink(&port.kind)
                || has_lease(node, port)
                || live.iter().any(|it| is_host_end(port, &it.attachment))
        };
        let bridges = node.configuration.bridges().into_iter();
        let bridges = bridges.filter_map(|it| node.link_called(it));
        let ports = bridges.flat_map(|it| node.ports(it.index).map(move |port| (it, port)));
        let strange = ports.filter(|(_, port)| !is_explained(port));
        let strange = strange.map(|(bridge, port)| Self {
            name: &port.name,
            bridge: &bridge.name,
        });
        strange.collect()
    }
}

/// Returns whether links of this kind connect a bridge to other hosts.
fn is_uplink(kind: &LinkKind) -> bool {
    match kind {
        LinkKind::Physical | LinkKind::Vlan(_) => true,
        LinkKind::Other(name) => ["bond", "team"].contains(&name.as_str()),
        _ => false,
    }
}

/// Returns whether the link has the name and the tag of an attachment with a lease.
fn has_lease(node: &Node, link: &Link) -> bool {
    let attachment = owner_of(link).and_then(Attachment::of_owner);
    let attachment = attachment.filter(|it| host_link_name(it) == link.name);
    let mut leases = node.leases.iter();
    attachment.is_some_and(|it| leases.any(|lease| lease.attachment().as_ref() == Some(&it)))
}
