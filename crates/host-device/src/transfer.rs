//! Brings a device back to the host, and restores what it was.

use std::path::Path;

use anyhow::{Context as _, bail};
use cni::{GOING_ON, note, or_note};
use ipnetwork::IpNetwork;
use netlink::{Connection, Dad, Link, LinkChange, Request, created};
use netns::Netns;

use crate::record::{self, Former, Record};

/// Where a device is after [`bring_back`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the host, as it was.
    Home,
    /// On the host, with another name, because another link has its name now.
    Renamed { now: (u32, String), other: String },
    /// Neither on the host nor in a known sandbox.
    Missing,
}

/// Moves the device of `record` from the sandbox to the host and restores its name, settings,
/// addresses and state. Searches the sandbox of the record and the one at `netns`, then the host,
/// where the kernel puts the hardware of a deleted namespace.
///
/// # Errors
/// The kernel refuses a request. The device may then be back, but not as it was.
pub(crate) fn bring_back(record: &Record, netns: Option<&Path>) -> anyhow::Result<Place> {
    let former = &record.device;
    let host = Connection::open()?;
    let own = Netns::own()?;
    let other = netns.filter(|it| *it != record.netns);
    for path in [record.netns.as_path()].into_iter().chain(other) {
        let Some((_, sandbox)) = Connection::open_if_present(path)? else {
            continue;
        };
        if let Some(link) = former.find_in(&sandbox, &own)? {
            let link = carry(former, &link, (&sandbox, &host, &own))?;
            return restore(&host, &link, former);
        }
    }
    match former.find_on_host(&host)? {
        Some(link) => restore(&host, &link, former),
        None => Ok(Place::Missing),
    }
}

/// Restores hardware that is on the host although its record says that it has left: the kernel put it
/// there when the sandbox ended, or a DEL could not restore its name. Only reports a failure, which
/// concerns another attachment. Returns the other records, each with its owner.
pub(crate) fn reclaim(host: &Connection) -> anyhow::Result<Vec<(String, Record)>> {
    let mut away = Vec::new();
    for (owner, record) in Record::all()? {
        let found = record
            .device
            .find_on_host(host)?
            .filter(|_| record.has_left);
        let restored = found.map(|link| restore(host, &link, &record.device));
        if let Some(Place::Home) = or_note(restored.transpose(), GOING_ON).flatten() {
            record::files().retire(&owner).remove()?;
        } else {
            away.push((owner, record));
        }
    }
    Ok(away)
}

/// Returns a message for each device that has left, and that neither the host has as it was nor its
/// sandbox.
pub(crate) fn unreturned() -> anyhow::Result<Vec<String>> {
    let (mut messages, host) = (Vec::new(), Connection::open()?);
    for (owner, record) in Record::all()?.into_iter().filter(|it| it.1.has_left) {
        let (former, own) = (&record.device, Netns::own()?);
        if let Some((_, sandbox)) = Connection::open_if_present(&record.netns)?
            && former.find_in(&sandbox, &own)?.is_some()
        {
            continue;
        }
        let place = match former.find_on_host(&host)? {
            Some(link) => format!("is on the host as {}, but not as it was", link.name),
            None if former.is_physical() => "is neither on the host nor in the sandbox".to_owned(),
            None => "was a virtual link, which the kernel deleted with the sandbox".to_owned(),
        };
        messages.push(format!(
            "device {}, which {owner} had, {place}",
            former.name
        ));
    }
    Ok(messages)
}

/// Moves `link` from the sandbox to the host, by its former name if that is free. Renames the link
/// first if possible, so programs of the host see no other name.
fn carry(
    former: &Former,
    link: &Link,
    (sandbox, host, own): (&Connection, &Connection, &Netns),
) -> anyhow::Result<Link> {
    let name = match host.find_link(&former.name)? {
        Some(_) => format!("dev{}", link.index),
        None => former.name.clone(),
    };
    let down = Request::change_link_number(link.index, &LinkChange::Down);
    sandbox.attempt(&[down, Request::rename_link(link.index, &name)])?;
    let moved = sandbox.execute([Request::move_link(link.index, own, &name)]);
    let named = host.find_link(&name)?;
    let elsewhere = || former.find_on_host(host);
    if let Some(link) = named.map_or_else(elsewhere, |it| Ok(Some(it)))? {
        return Ok(link);
    }
    moved.with_context(|| format!("move {} back to the host", former.name))?;
    bail!(
        "moved {} to the host, but the host has no such link; look at `ip link`, then repeat DEL",
        former.name
    )
}

/// Gives `link`, a link of the host, the name, the settings, the addresses and the state of
/// `former`. Changes nothing that it has already. Tries all steps.
///
/// # Errors
/// All refusals of the kernel.
pub(crate) fn restore(host: &Connection, link: &Link, former: &Former) -> anyhow::Result<Place> {
    let (mut place, mut requests) = (Place::Home, Vec::new());
    let change = |it: &LinkChange<'_>| Request::change_link_number(link.index, it);
    let now = Former::of(link, &[]);
    let (mut settings, now) = (former.settings(), now.settings());
    settings.retain(|it| !now.contains(it));
    let is_mac = |it: &LinkChange<'_>| matches!(it, LinkChange::Mac(_));
    let needs_down = link.name != former.name || settings.iter().any(is_mac);
    if needs_down {
        // A kernel before 6.2 renames no link that is up, and many drivers keep the MAC of one.
        requests.push(change(&LinkChange::Down));
    }
    if link.name != former.name {
        match host.find_link(&former.name)? {
            Some(other) => {
                let now = (link.index, link.name.clone());
                let other = other.kind.to_string();
                place = Place::Renamed { now, other };
            }
            None => requests.push(Request::rename_link(link.index, &former.name)),
        }
    }
    requests.extend(settings.iter().map(change));
    if let Some(name) = &former.master
        && let Some(master) = host.find_link(name)?
        && link.master != Some(master.index)
    {
        requests.push(change(&LinkChange::Master(master.index)));
    }
    let mut outcomes = host.attempt(&requests)?;
    let there = host.addresses(link.index)?;
    let is_missing = |it: &&IpNetwork| there.iter().all(|has| has.address != **it);
    let missing = former.addresses.iter().filter(is_missing);
    let add = |it: &IpNetwork| Request::add_address(link.index, *it, Dad::Perform);
    let is_down = needs_down || !link.is_up;
    let up = (former.is_up && is_down).then(|| change(&LinkChange::Up));
    let requests: Vec<_> = missing.map(add).chain(up).collect();
    outcomes.extend(host.attempt(&requests)?);
    // Another verb may restore the same device at the same time, and add an address first.
    let outcomes = outcomes.into_iter().map(|it| created(it).map(drop));
    cni::all(outcomes.map(|it| it.map_err(anyhow::Error::from)))
        .with_context(|| format!("restore {}", former.name))?;
    Ok(place)
}

/// Reports what is not as it was.
pub(crate) fn report(place: &Place, former: &Former) {
    let name = &former.name;
    match place {
        Place::Home => {}
        Place::Renamed {
            now: (_, now),
            other,
        } => note!(
            "{name} is back on the host as {now}, because a {other} link has its name: rename that \
             link, and GC of the network restores the name"
        ),
        Place::Missing if former.is_physical() => {
            note!("{name} is neither on the host nor in the sandbox: not restored");
        }
        Place::Missing => note!(
            "{name} is not in the sandbox any more; it was a virtual link, which the kernel deletes \
             with its namespace"
        ),
    }
}
