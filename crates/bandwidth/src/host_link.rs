//! Finds the host end of a sandbox's veth pair. The limits apply at this link.

use cni::{AddRequest, DelRequest, Error};
use netlink::{Connection, Link, LinkKind};
use netns::Netns;

/// Returns the host end of the veth pair whose other end is the attachment's interface.
/// `prevResult` must list this host end, or the plugin `bridge` or `ptp` must have made it for the
/// attachment: an operator may have renamed it since.
///
/// # Errors
/// - Code 4: the sandbox does not exist.
/// - Code 7: the sandbox does not have the interface.
/// - Code 7: the interface is no end of a veth pair with the host, for example a macvlan link.
/// - Code 7: `prevResult` is missing or does not list the host end.
pub(crate) fn find(request: &AddRequest, host: &Connection) -> anyhow::Result<Link> {
    let namespace = &Netns::open(&request.netns).map_err(Error::sandbox)?;
    if let Some(link) = only_pair(request, host, namespace)? {
        return Ok(link);
    }
    let interface = &request.attachment.interface;
    let sandbox = Connection::open_in(namespace).map_err(Error::sandbox)?;
    let invalid = |reason| Error::invalid("prevResult", reason);
    let container_link = sandbox.find_link(interface.as_str())?;
    let container_link = container_link
        .ok_or_else(|| invalid(format!("the sandbox has no interface {interface}")))?;
    let host_link = host.other_end(&container_link, namespace)?.ok_or_else(|| {
        let kind = &container_link.kind;
        invalid(format!(
            "{interface} in the sandbox is of kind {kind} and has no other end on the host, so it cannot be \
             limited; remove the limits, or attach the sandbox by bridge or ptp"
        ))
    })?;
    let mut reported = request.chained()?.interfaces.iter();
    let is_reported = reported.any(|it| it.sandbox.is_none() && it.name == host_link.name);
    if is_reported || attach::is_host_end(&host_link, &request.attachment) {
        return Ok(host_link);
    }
    Err(invalid(format!(
        "{}, the other end of {interface}, is not among its interfaces",
        host_link.name
    ))
    .into())
}

/// Returns the host end if `prevResult` identifies it: `prevResult` lists only the attachment's
/// interface in the sandbox, and exactly one host link with its peer in the sandbox.
///
/// Returns `None` if `prevResult` does not identify it, or lists another MAC than the link has. The
/// caller then looks for the peer in the sandbox, which takes longer.
fn only_pair(
    request: &AddRequest,
    host: &Connection,
    namespace: &Netns,
) -> anyhow::Result<Option<Link>> {
    let reported = request.chained()?.interfaces.iter();
    let (on_host, inside): (Vec<_>, Vec<_>) = reported.partition(|it| it.sandbox.is_none());
    let is_it = |name: &str| name == request.attachment.interface.as_str();
    if !matches!(inside.as_slice(), [only] if is_it(&only.name)) {
        return Ok(None);
    }
    let mut links = host.links_named(on_host.iter().map(|it| it.name.as_str()))?;
    links.retain(|it| it.kind == LinkKind::Veth && it.peer_namespace.is_some());
    let number = host.namespace_id(namespace).map_err(Error::sandbox)?;
    links.retain(|it| it.peer_namespace == number);
    let is_as_reported = |link: &Link| {
        let mut named = on_host.iter().filter(|it| it.name == link.name);
        named.all(|it| it.mac.is_none() || it.mac == link.mac.map(|mac| mac.to_string()))
    };
    match links.pop() {
        Some(link) if links.is_empty() && is_as_reported(&link) => Ok(Some(link)),
        _ => Ok(None),
    }
}

/// For DEL: returns the names of links that may be the host end. If the sandbox still exists,
/// returns the name of the interface's peer, or no name if there is no peer. If the sandbox is
/// gone, returns the names of all host links in `prevResult`.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn names(request: &DelRequest, host: &Connection) -> anyhow::Result<Vec<String>> {
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
