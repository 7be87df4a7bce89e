//! Finds out whether an attachment has ended, and takes everything from one that has, so that
//! another attachment may have its ports.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use attach::{coded, is_host_end_of};
use cni::result::AddResult;
use cni::{Attachment, InterfaceName};
use netlink::{Connection, Link, LinkKind, Route};
use netns::Netns;

use crate::record::{self, Identity, Record};
use crate::{firewall, forward, handover, localnet, standby, table};

/// Returns whether the attachment of `owner` has ended. If so, removes everything of it, which
/// frees its ports, and deletes the conntrack entries of connections to its container. With such an
/// entry, packets of a client that reuses its source port would still be translated to the old
/// address.
///
/// A concurrent ADD may attach the same container again. That ADD writes its record before it
/// changes any rule, so this function notices the new record and leaves the elements of that ADD
/// alone.
///
/// # Errors
/// The kernel refuses a request, or a file cannot be removed.
pub(crate) fn take_over_if_gone(connection: &nft::Connection, owner: &str) -> anyhow::Result<bool> {
    let record = Record::read(owner);
    if !is_gone(connection, owner, record.as_ref()) {
        return Ok(false);
    }
    let is_unchanged = || Record::read(owner) == record;
    if is_unchanged() {
        standby::leave(owner)?;
    }
    let displaced = record.as_ref().map_or(&[][..], |it| &it.displaced);
    let removed = handover::remove_while(connection, owner, displaced, is_unchanged);
    let removed = removed.map_err(coded)?;
    firewall::delete_translated(connection, &removed.elements, |_| true);
    if is_unchanged() {
        localnet::release(owner, record.as_ref())?;
        record::files().retire(owner).remove()?;
    }
    Ok(true)
}

/// Returns whether the attachment with the tag `owner` has certainly ended. `record` is what ADD
/// recorded about the attachment, or `None` if the record is missing or unreadable.
///
/// Returns `false` if the record is unreadable, or if `owner` is not the tag of an attachment
/// (`cni:…`). If the record is missing, returns `true` only if [`may_live`] succeeds
/// and returns `false`.
pub(crate) fn is_gone(firewall: &nft::Connection, owner: &str, record: Option<&Record>) -> bool {
    match record {
        Some(record) => is_over(record),
        None if Record::is_torn(owner) || !Attachment::is_owner(owner) => false,
        None => !may_live(firewall, owner).unwrap_or(true),
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

/// Returns whether the attachment with the tag `owner`, which has no record, may still exist. After a
/// boot, a saved ruleset may bring back elements of sandboxes that ended with the previous boot. But
/// an operator may also have deleted the record of a live attachment, which is below `/run`. One of
/// two signs is enough:
///
/// - A link is the host's end of its veth pair.
/// - A link may be the host's link to the sandbox: no record lists it, [`may_lead_to_unknown`]
///   accepts it, and a route to one of the container's addresses uses this link or its bridge,
///   without a gateway.
pub(crate) fn may_live(firewall: &nft::Connection, owner: &str) -> anyhow::Result<bool> {
    let host = Connection::open()?;
    let links = host.links()?;
    if links.iter().any(|it| is_host_end_of(it, owner)) {
        return Ok(true);
    }
    let elements = firewall.elements_owned(&table::table(), |it| it == owner);
    let elements = elements.map_err(coded)?;
    let forwards = elements.iter().filter_map(forward);
    let pods: BTreeSet<IpAddr> = forwards.map(|it| it.pod).collect();
    let routes = host.routes_to(&pods.into_iter().collect::<Vec<_>>())?;
    let direct = routes.iter().flatten().filter(|it| it.gateway.is_none());
    let towards: HashSet<u32> = direct.flat_map(Route::links).collect();
    let others = recorded_links()?;
    let mut candidates = links.iter().filter(|it| {
        let is_port = it.master.is_some_and(|master| towards.contains(&master));
        (is_port || towards.contains(&it.index)) && !others.contains(&it.index)
    });
    Ok(candidates.any(may_lead_to_unknown))
}

/// Returns whether `link`, which no record lists, may be the host's link to a sandbox. A veth whose
/// alias is the tag of an attachment does not count: [`may_live`] has found no link with the tag
/// that it looks for, so the veth belongs to another attachment.
fn may_lead_to_unknown(link: &Link) -> bool {
    let is_tagged = link.alias.as_deref().is_some_and(Attachment::is_owner);
    match link.kind {
        LinkKind::Veth => !is_tagged && link.peer_namespace.is_some(),
        LinkKind::Loopback | LinkKind::Bridge | LinkKind::Ifb => false,
        // A physical or VLAN interface that is a port of a bridge is an uplink of the bridge, so no
        // sandbox is behind it. Without a bridge, it may have a sandbox behind it, because a route
        // points to it.
        LinkKind::Physical | LinkKind::Vlan(_) => link.master.is_none(),
        _ => true,
    }
}

/// Returns the indices of the host's links that belong to attachments with a record.
fn recorded_links() -> anyhow::Result<HashSet<u32>> {
    let owners = record::files().owners()?.into_iter();
    let records = owners.filter_map(|owner| Record::read(&owner));
    Ok(records.filter_map(|it| it.host_link).collect())
}

/// Maximum time to wait until the kernel has deleted the interfaces of a namespace that ended. The
/// kernel needs about 50 ms, and longer if many namespaces end at once.
const END_OF_A_NAMESPACE: Duration = Duration::from_secs(1);
