//! What an attachment has in `nf_tables`: taken away, compared, forgotten.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cni::{Attachment, Error, note};
use ipnetwork::IpNetwork;
use netlink::Family;
use nft::{Connection, Element, IpVersion};

use crate::config::is_link_local;
use crate::element::{concerned_port, count_element, forward, host_port, port_element};
use crate::plan::HostPort;
use crate::record::{Record, Records};
use crate::standby::Standby;
use crate::succession::{self, Removed};
use crate::table::{self, Claim};

/// Removes what `owner` has: what its record lists, or, without one, what has its name. What is
/// not there, or cannot be, is removed.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn remove_of(
    owner: &str,
    (record, records): (Option<&Record>, &Records),
) -> anyhow::Result<()> {
    let is_own = |it: &str| it == owner;
    let standing = leave_standby(is_own)?;
    let connection = Connection::open()?;
    let known = match record {
        Some(record) => Ok(record.elements.clone()),
        None => connection.elements_owned(&table::table(), is_own),
    };
    let removed =
        known.and_then(|known| succession::remove(&connection, records, (known, standing)));
    finish(&connection, removed).map(drop)
}

/// Removes what `owner` has without a record, which is looked for in the same generation of the rules.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn remove_unrecorded(owner: &str, records: &Records) -> anyhow::Result<()> {
    let has_none = || !records.has(owner);
    if has_none() {
        Standby::default().leave(owner)?;
    }
    let connection = Connection::open()?;
    let known = connection.elements_owned(&table::table(), |it| it == owner);
    let removed =
        known.and_then(|known| succession::remove_while(&connection, records, (known, has_none)));
    finish(&connection, removed).map(drop)
}

/// Removes the elements whose owner is doomed, and says who these are, each once. What is not there,
/// or cannot be, is removed.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn remove(
    is_doomed: impl Fn(&str) -> bool,
    records: &Records,
) -> anyhow::Result<BTreeSet<String>> {
    let standing = leave_standby(&is_doomed)?;
    let connection = Connection::open()?;
    let known = connection.elements_owned(&table::table(), is_doomed);
    let removed =
        known.and_then(|known| succession::remove(&connection, records, (known, standing)));
    let removed = finish(&connection, removed)?;
    Ok(removed.into_iter().map(|it| it.owner).collect())
}

/// Returns who still stands by. It comes first: the attachment that hands over a port looks afterwards whether the
/// successor still stands by.
fn leave_standby(is_doomed: impl Fn(&str) -> bool) -> anyhow::Result<Vec<String>> {
    let standby = Standby::default();
    let (doomed, standing): (Vec<_>, Vec<_>) =
        standby.owners().into_iter().partition(|it| is_doomed(it));
    cni::all(doomed.iter().map(|owner| standby.leave(owner)))?;
    Ok(standing)
}

/// Forgets the connections of senders that would go on to send as if nothing had happened, by the
/// connection of the deletion: closing any waits until the kernel has freed what was deleted.
fn finish(
    connection: &Connection,
    removed: Result<Removed, nft::Error>,
) -> anyhow::Result<Vec<Element>> {
    let removed = match removed {
        Err(error) if error.is_unsupported() => return Ok(Vec::new()),
        removed => removed.map_err(coded)?,
    };
    let are_meant = |it: HostPort| it.is_connectionless() || removed.passed_on.contains(&it);
    forget_led(connection, &removed.elements, are_meant);
    if !removed.elements.is_empty() {
        detach::close_later(connection.handle().map_err(coded)?);
    }
    Ok(removed.elements)
}

/// What is not as ADD left it. A port that another attachment of the container serves is as it should be.
///
/// # Errors
/// Whatever the kernel refuses.
pub(crate) fn differences(claim: &Claim, record: &Record) -> anyhow::Result<Vec<String>> {
    let connection = Connection::open()?;
    let (mut missing, mut standing) = (Vec::new(), HashSet::new());
    let found = connection.missing(&claim.table, &claim.elements);
    for element in found.map_err(coded)? {
        if stands_by(&connection, claim, element).map_err(coded)? {
            standing.insert(element);
        } else {
            missing.push(element.describe_missing());
        }
    }
    let serving = claim.elements.iter().filter(|it| !standing.contains(it));
    let used: HashSet<_> = serving.filter_map(Element::chain).collect();
    let chains = claim.table.chains.iter();
    let chains = chains.filter(|it| used.contains(it.name.as_str()));
    let table = table::with_chains(chains.cloned());
    let mut found = connection.damage(&table).map_err(coded)?;
    found.append(&mut missing);
    let serving = claim.elements.iter().filter(|it| !standing.contains(it));
    found.extend(uncounted(&connection, claim, serving).map_err(coded)?);
    let wanted: HashSet<_> = claim.elements.iter().collect();
    let others = record.elements.iter().filter(|it| !wanted.contains(it));
    found.extend(others.map(|it| format!("nf_tables: {it} was not asked for")));
    Ok(found)
}

/// Ports of single addresses whose counts are missing, in words: an ADD that asks for such a port of every address would
/// not find it held.
fn uncounted<'e>(
    connection: &Connection,
    claim: &Claim,
    elements: impl Iterator<Item = &'e Element>,
) -> Result<Vec<String>, nft::Error> {
    let ports: BTreeSet<_> = elements.filter_map(host_port).collect();
    let mut uncounted = Vec::new();
    for port in ports.into_iter().filter(|it| it.address.is_some()) {
        let count = count_element(port);
        if connection.holder(&claim.table, &count)?.is_none() {
            uncounted.push(format!(
                "nf_tables: {port} is not counted in set {}",
                count.set
            ));
        }
    }
    Ok(uncounted)
}

/// Another attachment of the container serves the port of `element`.
fn stands_by(
    connection: &Connection,
    claim: &Claim,
    element: &Element,
) -> Result<bool, nft::Error> {
    let Some(port) = concerned_port(element) else {
        return Ok(false);
    };
    let wanted = port_element(port, &claim.owner);
    let holder = connection.holder(&claim.table, &wanted)?;
    let is_other = |it: &Element| it.owner != claim.owner;
    let holder = holder.filter(is_other);
    Ok(holder.is_some_and(|it| Attachment::is_same_container(&it.owner, &claim.owner)))
}

/// Asks whether the kernel can do it, and lets us.
///
/// # Errors
/// Code 50.
pub(crate) fn rehearse() -> Result<(), Error> {
    let asked = Connection::open().and_then(|connection| connection.rehearse(&table::table()));
    asked.map_err(|error| Error::Unavailable {
        reason: format!("nf_tables: {:#}", anyhow::Error::from(error)),
    })
}

/// Forgets connections to `ports` of this host that began before the ports were forwarded to where they
/// are now, and would go on as they began. A failure hurts only them, and is logged.
pub(crate) fn forget(ports: &[HostPort]) {
    if ports.is_empty() {
        return;
    }
    let destinations: Vec<_> = ports.iter().map(|it| it.destination()).collect();
    let forget = || Connection::open()?.forget(&destinations, &host_addresses(ports));
    forget().unwrap_or_else(note_unforgotten);
}

/// The addresses at which `ports` of every address are; of loopback networks 127.0.0.1 alone, which clients use. All addresses where the kernel does not say.
fn host_addresses(ports: &[HostPort]) -> Vec<IpNetwork> {
    let every = ports.iter().filter(|it| it.address.is_none());
    let versions: BTreeSet<_> = every.map(|it| it.version).collect();
    let read = || {
        let host = netlink::Connection::open()?;
        let families = versions.iter().map(|version| match version {
            IpVersion::V4 => Family::V4,
            IpVersion::V6 => Family::V6,
        });
        let networks = families.map(|family| host.local_destinations(family));
        networks.collect::<Result<Vec<_>, netlink::Error>>()
    };
    let networks = read().map_or_else(|_| everywhere(), |it| it.concat());
    let is_used = |it: &IpNetwork| match it.ip() {
        address if is_link_local(address) => false,
        address if address.is_loopback() => address == Ipv4Addr::LOCALHOST && it.prefix() == 32,
        _ => true,
    };
    networks.into_iter().filter(is_used).collect()
}

fn everywhere() -> Vec<IpNetwork> {
    let [v4, v6] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let networks = [v4, v6].map(|address: IpAddr| IpNetwork::new(address, 0));
    networks.into_iter().flatten().collect()
}

/// Forgets connections that elements which are gone led to their pods, those of the ports that
/// `are_meant`.
pub(crate) fn forget_led(
    connection: &Connection,
    gone: &[Element],
    are_meant: impl Fn(HostPort) -> bool,
) {
    let led = gone.iter().filter_map(forward);
    let mut led = led.filter(|it| are_meant(it.port));
    let forgotten = led.try_for_each(|it| {
        let pod = SocketAddr::new(it.pod, it.container_port);
        connection.forget_led(it.port.destination(), pod)
    });
    forgotten.unwrap_or_else(note_unforgotten);
}

fn note_unforgotten(error: nft::Error) {
    let error = anyhow::Error::from(error);
    note(format_args!(
        "connections to the ports may go on as they were: {error:#}"
    ));
}

pub(crate) fn coded(error: nft::Error) -> anyhow::Error {
    if error.is_busy() {
        let reason = error.to_string();
        return Error::TryAgain { reason }.into();
    }
    anyhow::Error::from(error).context("nf_tables")
}
