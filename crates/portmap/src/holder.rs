//! Finds out whether an attachment that holds a port has ended, so that another attachment may take
//! the port.

use std::io;
use std::path::Path;
use std::time::Duration;

use cni::InterfaceName;
use cni::result::AddResult;
use netlink::{Connection, Link, LinkKind};
use netns::Netns;

use crate::record::{Identity, Record};
use crate::unrecorded;

/// Returns whether the attachment with the tag `owner` has certainly ended. `record` is what ADD
/// recorded about the attachment, or `None` if the record is missing or unreadable.
///
/// Returns `false` if the record is unreadable, or if `owner` is not the tag of an attachment
/// (`cni:…`). If the record is missing, returns `true` only if [`unrecorded::may_live`] succeeds
/// and returns `false`.
pub(crate) fn is_gone(firewall: &nft::Connection, owner: &str, record: Option<&Record>) -> bool {
    match record {
        Some(record) => is_over(record),
        None if Record::is_torn(owner) || !owner.starts_with("cni:") => false,
        None => !unrecorded::may_live(firewall, owner).unwrap_or(true),
    }
}

/// Returns whether the attachment of `record` has ended: its sandbox or its interface no longer
/// exists. The path in the following table is `CNI_NETNS` of the attachment's ADD.
///
/// | what is at the path | the host's end of the veth pair | result |
/// |---|---|---|
/// | the sandbox | exists | not ended |
/// | the sandbox | is deleted | ended: the kernel deletes both ends together |
/// | the sandbox | not recorded | ended if the interface has none of the recorded addresses |
/// | another file, or none | exists | not ended: another process keeps the sandbox |
/// | another file, or none | is deleted | ended: the kernel deletes both ends together |
/// | another file, or none | not recorded | ended if the path was a mount |
/// | unknown: the path cannot be read | – | not ended |
///
/// The host's end is recorded by its interface index. The kernel gives no later interface this
/// index, so an existing interface of that index is the host's end itself. The index is not
/// recorded if `prevResult` names no veth of the host.
///
/// If the host's end is recorded, the addresses in the sandbox show nothing: gVisor, for example,
/// removes them from the container's interface, because it has a network stack of its own.
///
/// Without the index, only the path shows whether the sandbox exists. If the path was a mount of
/// the namespace, the attachment has ended, because a runtime keeps the mount as long as the
/// sandbox. A path below /proc is not a mount: it depends on a process, which may end before the
/// sandbox does, and the kernel reuses process IDs. A symbolic link may point to such a path, so it
/// does not count as a mount either.
pub(crate) fn is_over(record: &Record) -> bool {
    match Identity::of(&record.netns) {
        Ok(identity) if identity == record.identity => match record.host_link {
            Some(link) => is_deleted(link),
            None => lacks_addresses(record).unwrap_or(false),
        },
        Err(error) if error.kind() != io::ErrorKind::NotFound => false,
        Ok(_) | Err(_) => match record.host_link {
            Some(link) => is_deleted_soon(link),
            None => is_mount(&record.netns),
        },
    }
}

/// Returns the interface index of the host's end of a veth pair whose other end is in `netns`;
/// `None` if `result` names no such end. The kernel deletes the host's end together with the
/// namespace.
///
/// # Errors
/// The kernel refuses a request.
pub(crate) fn host_link(
    host: &Connection,
    result: &AddResult,
    netns: &Netns,
) -> Result<Option<u32>, netlink::Error> {
    let Some(number) = host.namespace_id(netns)? else {
        return Ok(None);
    };
    let leads_there =
        |link: &Link| link.kind == LinkKind::Veth && link.peer_namespace == Some(number);
    let on_host = result.interfaces.iter().filter(|it| it.sandbox.is_none());
    let names = on_host.filter(|it| it.name.parse::<InterfaceName>().is_ok());
    for interface in names {
        if let Some(link) = host.find_link(&interface.name)?.filter(leads_there) {
            return Ok(Some(link.index));
        }
    }
    Ok(None)
}

/// Returns whether no interface has this index now.
fn is_deleted(index: u32) -> bool {
    let link = Connection::open().and_then(|it| it.link_by_index(index));
    link.is_err_and(|error| error.is_not_found())
}

/// Returns whether no interface has this index. The kernel deletes an interface a little later than
/// its namespace. So the function waits up to [`END_OF_A_NAMESPACE`] before it returns `false`.
fn is_deleted_soon(index: u32) -> bool {
    Connection::open().is_ok_and(|it| it.is_gone_within(index, END_OF_A_NAMESPACE))
}

fn is_mount(netns: &Path) -> bool {
    !netns.starts_with("/proc") && !netns.is_symlink()
}

fn lacks_addresses(record: &Record) -> Result<bool, netlink::Error> {
    let Some((_namespace, sandbox)) = Connection::open_if_present(&record.netns)? else {
        return Ok(true);
    };
    let Some(link) = sandbox.find_link(&record.interface)? else {
        return Ok(true);
    };
    let addresses = sandbox.addresses(link.index)?;
    let has = |address| addresses.iter().any(|it| it.address.ip() == address);
    Ok(!record.addresses.iter().any(|address| has(*address)))
}

/// Maximum time to wait until the kernel has deleted the interfaces of a namespace that ended. The
/// kernel needs about 50 ms, and longer if many namespaces end at once.
const END_OF_A_NAMESPACE: Duration = Duration::from_secs(1);
