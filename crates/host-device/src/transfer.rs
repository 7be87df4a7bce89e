//! Brings a device back to the host, and restores what it was.

use std::path::Path;

use anyhow::Context as _;
use cni::{GOING_ON, note, or_note};
use netlink::{Connection, Link, LinkChange, Request, SavedAddress, created, found};
use netns::Netns;

use crate::record::{self, Former, Record};

/// Where a device is after [`bring_back`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the host, as it was, except for what the kernel refuses.
    Home,
    /// On the host, but with another name.
    Renamed { now: Box<Link>, reasons: String },
    /// Neither on the host nor in a known sandbox.
    Missing,
}

/// Moves the device of `record` from the sandbox to the host and restores its name, settings,
/// addresses and state. Searches the sandbox of the record and the one at `netns`, then the host,
/// where the kernel puts the hardware of a deleted namespace.
///
/// # Errors
/// The kernel refuses to move the device, or does not answer. The device may then be back, but not as
/// it was.
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
            let carried = carry(former, &link, (&sandbox, &host, &own))?;
            return restore(&host, carried, former);
        }
    }
    restore(&host, former.find_on_host(&host)?, former)
}

/// Restores hardware that is on the host although its record says that it has left: the kernel put it
/// there when the sandbox ended, or a DEL could not restore its name. Only reports a failure, which
/// concerns another attachment. Returns the other records, each with its owner.
pub(crate) fn reclaim(host: &Connection) -> anyhow::Result<Vec<(String, Record)>> {
    let mut away = Vec::new();
    for (owner, record) in Record::all()? {
        let found = record.device.find_on_host(host)?;
        let restored = restore(host, found.filter(|_| record.has_left), &record.device);
        if let Some(Place::Home) = or_note(restored, GOING_ON) {
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
/// first if possible, so programs of the host see no other name. Returns `None` if another process
/// has taken the device from the host meanwhile.
fn carry(
    former: &Former,
    link: &Link,
    (sandbox, host, own): (&Connection, &Connection, &Netns),
) -> anyhow::Result<Option<Link>> {
    let name = match host.find_link(&former.name)? {
        Some(_) => format!("dev{}", link.index),
        None => former.name.clone(),
    };
    let is_index_taken = host.find_link_by_index(link.index)?.is_some();
    let down = Request::change_link_number(link.index, &LinkChange::Down);
    sandbox.attempt(&[down, Request::rename_link(link.index, &name)])?;
    let alias = former.alias.as_deref().unwrap_or_default();
    let moved = sandbox.execute([Request::move_link(link.index, own, &name, alias)]);
    // Another link may have got the name before the move.
    let is_device = |it: &Link| former.is_like(it) && (former.has_identity() || moved.is_ok());
    let named = host.find_link(&name)?.filter(is_device);
    let elsewhere = || former.find_on_host(host);
    let mut found = named.map_or_else(elsewhere, |it| Ok(Some(it)))?;
    if found.is_none() && moved.is_ok() && !is_index_taken {
        // Another program may have renamed it at once. The kernel keeps the index.
        let same = host.find_link_by_index(link.index)?;
        found = same.filter(|it| former.is_like(it));
    }
    if found.is_none() {
        moved.with_context(|| format!("move {} back to the host", former.name))?;
    }
    Ok(found)
}

/// Makes `link`, a link of the host, as `former` was. Tries twice, because a refusal may be
/// temporary.
///
/// # Errors
/// The kernel does not answer.
pub(crate) fn restore(
    host: &Connection,
    mut link: Option<Link>,
    former: &Former,
) -> anyhow::Result<Place> {
    let mut refusals = Vec::new();
    for _ in 0..2 {
        // Another verb may have restored the device, and moved it to another sandbox.
        let Some(there) = &link else {
            return Ok(Place::Missing);
        };
        refusals = apply(host, there, former)?;
        if refusals.is_empty() {
            return Ok(Place::Home);
        }
        link = host.find_link_by_index(there.index)?;
    }
    let reasons = refusals.join("; ");
    Ok(match link.map(Box::new) {
        None => Place::Missing,
        Some(now) if now.name != former.name => Place::Renamed { now, reasons },
        Some(_) => {
            note!(
                "{} is back on the host, but not as it was: {reasons}",
                former.name
            );
            Place::Home
        }
    })
}

/// Gives `link` the name, the settings, the addresses and the state of `former`. Changes nothing that
/// it has already. Tries all steps, and returns why some were not possible.
fn apply(host: &Connection, link: &Link, former: &Former) -> anyhow::Result<Vec<String>> {
    let (mut refusals, mut requests) = (Vec::new(), Vec::new());
    let change = |it: &LinkChange<'_>| Request::change_link_number(link.index, it);
    let now = Former::of(link);
    let (mut settings, now) = (former.settings(), now.settings());
    settings.retain(|it| !now.contains(it));
    let is_mac = |it: &LinkChange<'_>| matches!(it, LinkChange::Mac(_));
    let needs_down = link.name != former.name || settings.iter().any(is_mac);
    if needs_down {
        // A kernel before 6.2 renames no link that is up, and many drivers keep the MAC of one.
        requests.push(change(&LinkChange::Down));
    }
    match renaming(host, link, former)? {
        Ok(renaming) => requests.extend(renaming),
        Err(refusal) => refusals.push(refusal),
    }
    requests.extend(settings.iter().map(change));
    if let Some(name) = &former.master {
        match host.find_link(name)?.map(|it| it.index) {
            None => refusals.push(format!("its master {name} is missing")),
            Some(master) if link.master == Some(master) => {}
            Some(master) => requests.push(change(&LinkChange::Master(master))),
        }
    }
    let mut outcomes = host.attempt(&requests)?;
    let there = found(host.addresses(link.index))?.unwrap_or_default();
    let is_missing = |it: &&SavedAddress| there.iter().all(|has| has.address != it.address.address);
    let missing = former.saved_addresses.iter().filter(is_missing);
    let add = |it: &SavedAddress| it.addition_to(link.index);
    let is_down = needs_down || !link.is_up;
    let up = (former.is_up && is_down).then(|| change(&LinkChange::Up));
    let requests: Vec<_> = missing.map(add).chain(up).collect();
    // Another verb may restore the same device at the same time, and add an address first.
    let added = host.attempt(&requests)?.into_iter();
    outcomes.extend(added.map(|it| created(it).map(drop)));
    let refused = outcomes.into_iter().filter_map(Result::err);
    refusals.extend(refused.map(|it| it.to_string()));
    Ok(refusals)
}

/// Returns the requests that give `link` its former name, or why that is not possible.
fn renaming(
    host: &Connection,
    link: &Link,
    former: &Former,
) -> anyhow::Result<Result<Vec<Request>, String>> {
    let name = &former.name;
    if link.name == *name {
        return Ok(Ok(Vec::new()));
    }
    let rename = Request::rename_link(link.index, name);
    Ok(match host.find_link(name)? {
        None => Ok(vec![rename]),
        // udev makes the name that it would have given to the link an alternative name.
        Some(it) if it.index == link.index => Ok(vec![
            Request::delete_alternative_name(link.index, name),
            rename,
        ]),
        Some(other) => Err(format!(
            "a {} link has its name: rename that link",
            other.kind
        )),
    })
}

/// Reports what is not as it was.
pub(crate) fn report(place: &Place, former: &Former) {
    let name = &former.name;
    match place {
        Place::Home => {}
        Place::Renamed { now, reasons } => note!(
            "{name} is back on the host as {}: {reasons}; GC of the network or the next ADD tries \
             again",
            now.name
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
