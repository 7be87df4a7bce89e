//! Whether an attachment that holds a port lives.

use std::io;
use std::path::Path;
use std::time::Duration;

use cni::InterfaceName;
use cni::result::AddResult;
use netlink::{Connection, Link, LinkKind, Monitor, Wait};
use netns::Netns;

use crate::record::{Identity, Record, Records};
use crate::unrecorded;

/// What is known of an attachment that is gone.
pub(crate) struct Gone {
    /// Its record, if it has one.
    pub record: Option<Record>,
}

/// Whether the attachment that `owner` names is gone for sure. What cannot be proven counts as alive: a record
/// that cannot be read, and elements that no plugin made.
pub(crate) fn find_gone(
    firewall: &nft::Connection,
    records: &Records,
    owner: &str,
) -> Option<Gone> {
    let record = records.read(owner);
    let is_gone = match &record {
        Some(record) => is_over(record),
        None if records.is_torn(owner) || !owner.starts_with("cni:") => false,
        None => !unrecorded::may_live(firewall, records, owner).unwrap_or(true),
    };
    is_gone.then_some(Gone { record })
}

/// The sandbox is no more, or no longer bears the addresses that ports lead to.
///
/// | `CNI_NETNS` leads to | the host's end of the pair is | the sandbox is over |
/// |---|---|---|
/// | the sandbox | – | if it bears none of the addresses |
/// | another one, or nowhere | there | no: something else keeps it |
/// | another one, or nowhere | gone | yes: one end goes with the other |
/// | another one, or nowhere | not known | if that path was a mount, which is the runtime's own |
/// | what may not be looked at | – | no |
///
/// A path below /proc, or a symbolic link to one, is no mount but somebody's way in: it ends with a
/// process, whose number is used again. Indices of links are not.
pub(crate) fn is_over(record: &Record) -> bool {
    match Identity::of(&record.netns) {
        Ok(identity) if identity == record.identity => lacks_addresses(record).unwrap_or(false),
        Err(error) if error.kind() != io::ErrorKind::NotFound => false,
        Ok(_) | Err(_) => match record.host_link {
            Some(link) => is_no_link(link),
            None => is_mount(&record.netns),
        },
    }
}

/// The index of the host's end of a pair whose other end is in `netns`, if `result` tells of one:
/// it is gone as soon as the namespace is.
///
/// # Errors
/// Whatever the kernel refuses.
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

/// A link that ends with its namespace does so a little later.
fn is_no_link(index: u32) -> bool {
    let wait = Wait {
        link: index,
        what: "a holder's link to be gone",
        deadline: END_OF_A_NAMESPACE,
    };
    let never = |_: &Link| false;
    let left = Connection::open().and_then(|it| Monitor::new().wait_for_link(&it, &wait, never));
    left.is_err_and(|error| error.is_not_found())
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
    let bears = |address| addresses.iter().any(|it| it.address.ip() == address);
    Ok(!record.addresses.iter().any(|address| bears(*address)))
}

/// The kernel takes some 50 ms, and longer where many end at once.
const END_OF_A_NAMESPACE: Duration = Duration::from_secs(1);
