//! The host's end of the sandbox's pair, at which the limits are set.

use cni::{AddRequest, Error};
use netlink::{Connection, Link};
use netns::Netns;

/// Finds it by the other end, which is the sandbox's interface; a plugin earlier in the chain
/// has reported it.
///
/// # Errors
/// Code 7: there is none, as with macvlan or a device of the host's.
pub(crate) fn find(
    request: &AddRequest,
    host: &Connection,
    namespace: &Netns,
) -> anyhow::Result<Link> {
    let interface = &request.attachment.interface;
    let sandbox = Connection::open_in(namespace).map_err(Error::sandbox)?;
    let invalid = |reason| Error::invalid("prevResult", reason);
    let Some(container_link) = sandbox.find_link(interface.as_str())? else {
        return Err(invalid(format!("the sandbox has no interface {interface}")).into());
    };
    let Some(host_link) = host.other_end(&container_link, namespace)? else {
        let kind = &container_link.kind;
        return Err(invalid(format!(
            "{interface} is no end of a pair of which the host has the other ({kind:?}), and nothing else \
             can be limited; take the limits away, or join the sandbox by bridge or ptp"
        ))
        .into());
    };
    let mut reported = request.chained()?.interfaces.iter();
    if reported.any(|it| it.sandbox.is_none() && it.name == host_link.name) {
        return Ok(host_link);
    }
    Err(invalid(format!(
        "{}, the other end of {interface}, is not among its interfaces",
        host_link.name
    ))
    .into())
}
