//! Removes and compares an attachment's elements in `nf_tables`, and deletes tracked connections.

use std::collections::{BTreeSet, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use attach::coded;
use cni::{Attachment, note_failure};
use ipnetwork::IpNetwork;
use nft::{Connection, Element, HostPort, supported};

use crate::element::{concerned_port, count_element, host_port, port_element};
use crate::handover::{self, Removed};
use crate::networks::{EVERYWHERE, LINK_LOCAL};
use crate::record::{self, Record};
use crate::table::{self, DesiredElements};
use crate::{forward, standby};

/// Removes the elements of the attachment with the tag `owner` if it has no record. Each attempt of
/// the transaction looks for the record again, because a concurrent ADD may write one. `displaced`
/// are the attachments that may get elements back.
///
/// # Errors
/// The kernel refuses a request, or the standby list cannot be changed.
pub(crate) fn remove_unrecorded(owner: &str, displaced: &[String]) -> anyhow::Result<()> {
    let has_none = || !record::files().has(owner);
    if has_none() {
        standby::leave(owner)?;
    }
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(());
    };
    let removed = handover::remove_while(&connection, owner, displaced, has_none);
    finish(connection, removed).map(drop)
}

/// Removes the elements of the attachments whose tags (owners) `is_stale` accepts, and takes these
/// attachments off the standby list. Passes their ports on to attachments of the same container
/// that stand by for them, and gives elements back to the attachments `displaced`. Returns the
/// removed elements.
///
/// If `known` is given, it lists the elements to remove. Otherwise, the function finds the elements
/// by their comments, which contain the owner.
///
/// # Errors
/// The kernel refuses a request, or the standby list cannot be changed.
pub(crate) fn remove(
    is_stale: impl Fn(&str) -> bool,
    known: Option<Vec<Element>>,
    displaced: &[String],
) -> anyhow::Result<Vec<Element>> {
    let standing_by = leave_standby(&is_stale)?;
    let Some(connection) = Connection::open_if_supported()? else {
        return Ok(Vec::new());
    };
    let known = match known {
        Some(known) => Ok(known),
        None => connection.elements_owned(&table::without_chains(), is_stale),
    };
    let remove = |known| handover::remove(&connection, known, standing_by, displaced);
    let removed = known.and_then(remove);
    finish(connection, removed)
}

/// Removes the owners for which `is_stale` returns true from the standby list. This list has the
/// attachments that wait for a port of another attachment of the same container. Returns the owners
/// that remain on the list.
///
/// The caller removes elements only after this call. A concurrent verb may pass a port on to one of
/// the removed owners. That verb reads the list again afterwards, finds that the owner has left,
/// and takes the port back.
fn leave_standby(is_stale: impl Fn(&str) -> bool) -> anyhow::Result<BTreeSet<String>> {
    let (stale, standing_by): (BTreeSet<_>, BTreeSet<_>) =
        standby::owners().into_iter().partition(|it| is_stale(it));
    cni::all(stale.iter().map(|owner| standby::leave(owner)))?;
    Ok(standing_by)
}

/// Deletes the conntrack entries of removed ports that are UDP or that another attachment serves
/// now. Closes `connection` and returns the removed elements. If the kernel lacks a part of
/// `nf_tables`, returns none.
///
/// `connection` must be the one that removed the elements. Closing any `nf_tables` socket waits
/// until the kernel has freed the deleted objects, and only a connection that deleted objects
/// leaves this wait to another process ([`Connection::close`]).
fn finish(
    connection: Connection,
    removed: Result<Removed, nft::Error>,
) -> anyhow::Result<Vec<Element>> {
    let Some(removed) = supported(removed).map_err(coded)? else {
        return Ok(Vec::new());
    };
    let are_meant = |it: HostPort| it.is_connectionless() || removed.passed_on.contains(&it);
    delete_translated(&connection, &removed.elements, are_meant);
    connection.close();
    Ok(removed.elements)
}

/// Returns a message for each difference between `nf_tables` and `desired`: the elements that the
/// attachment wants, and the table that they need. An element that `record` lists and `desired`
/// lacks is a difference. A port that another attachment of the same container forwards is none.
pub(crate) fn differences(
    desired: &DesiredElements,
    record: &Record,
) -> anyhow::Result<Vec<String>> {
    let connection = Connection::open()?;
    let (mut missing, mut standing_by) = (Vec::new(), HashSet::new());
    let changed = connection.missing(&desired.table, &desired.elements);
    for element in changed.map_err(coded)? {
        if stands_by(&connection, desired, element).map_err(coded)? {
            standing_by.insert(element);
        } else {
            missing.push(element.describe_missing());
        }
    }
    let elements = desired.elements.iter();
    let serving: Vec<_> = elements.filter(|it| !standing_by.contains(it)).collect();
    let used: HashSet<_> = serving.iter().filter_map(|it| it.chain()).collect();
    let chains = desired.table.chains.iter();
    let chains = chains.filter(|it| used.contains(it.name.as_str()));
    let table = table::with_chains(chains.cloned());
    let mut found = connection.damage(&table).map_err(coded)?;
    found.append(&mut missing);
    found.extend(uncounted(&connection, desired, &serving).map_err(coded)?);
    let wanted: HashSet<_> = desired.elements.iter().collect();
    let others = record.elements.iter().filter(|it| !wanted.contains(it));
    found.extend(others.map(|it| format!("nf_tables: {it} was not asked for")));
    Ok(found)
}

/// A set in `nf_tables` counts, for each protocol and port, the single addresses of the host for
/// which the port is forwarded. Returns a message for each of `elements` that forwards a port of a
/// single address, if the set lacks this port. Without it, a later ADD of the same port for all
/// addresses would not notice the conflict.
fn uncounted(
    connection: &Connection,
    desired: &DesiredElements,
    elements: &[&Element],
) -> Result<Vec<String>, nft::Error> {
    let ports: BTreeSet<_> = elements.iter().filter_map(|it| host_port(it)).collect();
    let ports = ports.into_iter().filter(|it| it.address.is_some());
    let (ports, counts): (Vec<_>, Vec<_>) = ports.map(|it| (it, count_element(it))).unzip();
    let found = connection.holders(&desired.table, &counts)?;
    let missing = ports.iter().zip(&counts).zip(found);
    let missing = missing.filter(|(_, found)| found.is_none());
    let missing = missing
        .map(|((port, count), _)| format!("nf_tables: {port} is not counted in set {}", count.set));
    Ok(missing.collect())
}

/// Returns whether the attachment of `desired` stands by for the port of `element`: the port is
/// forwarded to another attachment of the same container.
fn stands_by(
    connection: &Connection,
    desired: &DesiredElements,
    element: &Element,
) -> Result<bool, nft::Error> {
    let Some(port) = concerned_port(element) else {
        return Ok(false);
    };
    let wanted = port_element(port, &desired.owner);
    let holder = connection.holder(&desired.table, &wanted)?;
    let is_other = |it: &Element| it.owner != desired.owner;
    let holder = holder.filter(is_other);
    Ok(holder.is_some_and(|it| Attachment::is_same_container(&it.owner, &desired.owner)))
}

/// Deletes the conntrack entries of all connections to `ports` of this host. A connection that
/// began before its port was forwarded to the present container would otherwise still go to the old
/// destination. A failure affects only such connections, and is reported on standard error.
pub(crate) fn forget(host: &netlink::Connection, ports: &[HostPort]) {
    if ports.is_empty() {
        return;
    }
    let forget = || Connection::open()?.delete_tracked(ports, &host_addresses(host, ports));
    note_failure(forget().context(UNFORGOTTEN));
}

/// Returns the host's addresses that clients may have used to reach those of `ports` that are
/// forwarded for all addresses. Returns none if each of `ports` is limited to a single address.
///
/// Omits link-local addresses, for which no port is forwarded, and all of 127.0.0.0/8 except
/// 127.0.0.1, because clients hardly ever use the rest. If the host's addresses cannot be read,
/// returns networks that contain all addresses.
fn host_addresses(host: &netlink::Connection, ports: &[HostPort]) -> Vec<IpNetwork> {
    let every = ports.iter().filter(|it| it.address.is_none());
    let versions: BTreeSet<_> = every.map(|it| it.version).collect();
    let read = || {
        let networks = versions.iter().map(|it| host.local_destinations(*it));
        networks.collect::<Result<Vec<_>, netlink::Error>>()
    };
    let networks = read().map_or_else(|_| EVERYWHERE.to_vec(), |it| it.concat());
    let is_used = |network: &IpNetwork| match network.ip() {
        address if LINK_LOCAL.iter().any(|it| it.contains(address)) => false,
        address if address.is_loopback() => {
            address == Ipv4Addr::LOCALHOST && network.prefix() == 32
        }
        _ => true,
    };
    networks.into_iter().filter(is_used).collect()
}

/// Deletes the conntrack entries of connections that the elements in `deleted` translated to a
/// container. Ignores ports for which `are_meant` returns false. Reports a failure on standard
/// error.
pub(crate) fn delete_translated(
    connection: &Connection,
    deleted: &[Element],
    are_meant: impl Fn(HostPort) -> bool,
) {
    let translated = deleted.iter().filter_map(forward);
    let translated = translated.filter(|it| are_meant(it.port));
    let translated = translated.map(|it| (it.port, SocketAddr::new(it.pod, it.container_port)));
    let translated: Vec<_> = translated.collect();
    let forgotten = connection.delete_translated(&translated);
    note_failure(forgotten.context(UNFORGOTTEN));
}

/// Consequence if conntrack entries cannot be deleted.
const UNFORGOTTEN: &str = "connections to the ports may continue to their former destination";
