//! Reads links, addresses and routes in the sandboxes of live attachments.

use netlink::{Address, Connection, Link, LinkKind, Route};

use super::{Attached, Node};
use crate::traces::owner_of;

/// A live attachment whose host end of the veth pair exists.
#[derive(Debug)]
pub struct Pod {
    /// Position of the attachment in [`Node::attached`].
    pub attached: usize,
    /// Interface index of the host's end of the veth pair.
    pub host_link: u32,
    /// The state inside the sandbox, or the reason why it could not be read.
    pub inside: Result<Inside, String>,
}

/// The network of a sandbox.
#[derive(Debug, Clone)]
pub struct Inside {
    /// The container's end of the veth pair.
    pub link: Link,
    /// Addresses of all links in the sandbox.
    pub addresses: Vec<Address>,
    /// Unicast routes of all tables in the sandbox.
    pub routes: Vec<Route>,
}

/// Returns the live attachments whose host end of the veth pair exists, with what is inside their
/// sandboxes. Skips an attachment if the peer of its host end is not in the namespace at the cached
/// path, for example because another sandbox has reused the path.
pub(super) fn pods(node: &Node) -> anyhow::Result<Vec<Pod>> {
    let connection = Connection::open()?;
    let pods = node.attached.iter().enumerate().filter_map(|(place, it)| {
        let link = host_link(node, it).filter(|_| it.is_alive)?;
        Some(Pod {
            attached: place,
            host_link: link.index,
            inside: inside(&connection, it, link)?,
        })
    });
    Ok(pods.collect())
}

/// Returns the host's end of the attachment's veth pair; `None` if it does not exist. A link that
/// this suite made is recognised also after an operator has renamed it or replaced its alias. A
/// link that a Go plugin made has no tag, so the cached result of ADD has to name it.
fn host_link<'n>(node: &'n Node, attached: &Attached) -> Option<&'n Link> {
    let named = attached.entry.host_links();
    let is_of = |it: &&Link| {
        let is_named = owner_of(it).is_none() && named.contains(&it.name);
        is_named || attach::is_host_end(it, &attached.attachment)
    };
    let mut pairs = node.links.iter().filter(|it| it.kind == LinkKind::Veth);
    pairs.find(is_of)
}

/// Returns what is inside the attachment's sandbox, or the reason why it cannot be read. Returns
/// `None` if there is no namespace at the cached path, or if the peer of `host_link` is not in that
/// namespace, for example because another sandbox has reused the path.
fn inside(
    connection: &Connection,
    attached: &Attached,
    host_link: &Link,
) -> Option<Result<Inside, String>> {
    let read = || -> anyhow::Result<Option<Inside>> {
        let inside = Connection::open_if_present(attached.entry.netns())?;
        let Some(((namespace, inside), index)) = inside.zip(host_link.peer) else {
            return Ok(None);
        };
        let number = connection.namespace_id(&namespace)?;
        if number.is_none() || number != host_link.peer_namespace {
            return Ok(None);
        }
        Ok(Some(Inside {
            link: inside.link_by_index(index)?,
            addresses: inside.every_address()?,
            routes: inside.routes()?,
        }))
    };
    read().map_err(super::message).transpose()
}
