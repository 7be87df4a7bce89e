//! The veth pair of an attachment. The limits apply at its two ends.

use cni::{AddRequest, DelRequest, Error};
use netlink::{Connection, Link, LinkKind};
use netns::Netns;
use tc::{End, LinkEgress};

use crate::Direction;

/// Both ends of an attachment's veth pair.
pub(crate) struct Pair {
    /// A connection to the host's namespace.
    pub host: Connection,
    /// The host's end.
    pub host_link: Link,
    /// The container's end, in the sandbox.
    container_link: Link,
    /// The sandbox.
    namespace: Netns,
    /// A connection to the sandbox.
    sandbox: Connection,
}

impl Pair {
    /// Finds the veth pair whose one end is the attachment's interface. `prevResult` must list the
    /// host's end, or the plugin `bridge` or `ptp` must have made it for the attachment: an operator
    /// may have renamed it since.
    ///
    /// # Errors
    /// - Code 4: the sandbox does not exist.
    /// - Code 7: the sandbox does not have the interface.
    /// - Code 7: the interface is no end of a veth pair with the host, for example a macvlan link.
    /// - Code 7: `prevResult` is missing or does not list the host end.
    pub fn find(request: &AddRequest) -> anyhow::Result<Self> {
        cni::step("find the pair");
        let host = Connection::open()?;
        let (namespace, sandbox) = attach::enter(&request.netns)?;
        let interface = &request.attachment.interface;
        let invalid = |reason| Error::invalid("prevResult", reason);
        let container_link = sandbox.find_link(interface.as_str())?;
        let container_link = container_link
            .ok_or_else(|| invalid(format!("the sandbox has no interface {interface}")))?;
        let host_link = host.other_end(&container_link, &namespace)?.ok_or_else(|| {
            let kind = &container_link.kind;
            invalid(format!(
                "{interface} in the sandbox is of kind {kind} and has no other end on the host, so it cannot be \
                 limited; remove the limits, or attach the sandbox by bridge or ptp"
            ))
        })?;
        let mut reported = request.chained()?.interfaces.iter();
        let is_reported = reported.any(|it| it.sandbox.is_none() && it.name == host_link.name);
        if !is_reported && !attach::is_host_end(&host_link, &request.attachment) {
            return Err(invalid(format!(
                "{}, the other end of {interface}, is not among its interfaces",
                host_link.name
            ))
            .into());
        }
        Ok(Self {
            host,
            host_link,
            container_link,
            namespace,
            sandbox,
        })
    }

    /// Returns the place of the limit of a direction: what the sandbox receives waits at the host's end,
    /// and what it sends at its own end.
    pub fn place(&self, direction: Direction) -> LinkEgress<'_> {
        match direction {
            Direction::Ingress => LinkEgress::new(&self.host, &self.host_link, End::Host),
            Direction::Egress => {
                let end = End::Container(&self.namespace);
                LinkEgress::new(&self.sandbox, &self.container_link, end)
            }
        }
    }
}

/// Finds the host's end without a look into the sandbox, where root may have renamed the interface:
/// the link that the plugin `bridge` or `ptp` made for the attachment or, for another plugin, the
/// only veth link of `prevResult` that leads to another namespace and has no tag.
///
/// # Errors
/// The kernel refuses a request, or `prevResult` is missing.
pub(crate) fn host_end(request: &AddRequest) -> anyhow::Result<Option<Link>> {
    let host = Connection::open()?;
    if let Some(tagged) = attach::find_host_link(&host, &request.attachment)? {
        return Ok(Some(tagged));
    }
    let reported = request.chained()?.interfaces.iter();
    let on_host = reported.filter(|it| it.sandbox.is_none());
    let mut links = host.links_named(on_host.map(|it| it.name.as_str()))?;
    links.retain(|it| {
        it.kind == LinkKind::Veth && it.peer_namespace.is_some() && it.alias.is_none()
    });
    Ok(links.pop().filter(|_| links.is_empty()))
}

/// For DEL: returns the names of links that may be the host end. If the sandbox still exists,
/// returns the name of the interface's peer, or no name if there is no peer. If the sandbox is
/// gone, returns the names of all host links in `prevResult`.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn host_links(request: &DelRequest, host: &Connection) -> anyhow::Result<Vec<String>> {
    let path = request.netns.as_deref();
    if let Some((namespace, sandbox)) = path.map_or(Ok(None), Connection::open_if_present)? {
        let container_link = sandbox.find_link(request.attachment.interface.as_str())?;
        let host_link = container_link.map(|it| host.other_end(&it, &namespace));
        let host_link = host_link.transpose()?.flatten();
        return Ok(host_link.into_iter().map(|it| it.name).collect());
    }
    let reported = request.prev_result.iter().flat_map(|it| &it.interfaces);
    let on_host = reported.filter(|it| it.sandbox.is_none());
    Ok(on_host.map(|it| it.name.clone()).collect())
}
