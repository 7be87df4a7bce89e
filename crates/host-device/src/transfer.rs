//! Brings a device back to the host, and restores what it was.

use anyhow::Context as _;
use attach::{Presence, Witness};
use cni::{GOING_ON, note, or_note};
use netlink::{Connection, Link, LinkChange, Request, SavedAddress, created, found};
use netns::Netns;

use crate::record::{self, Former, Record, presence};

/// Moves the device from the sandbox to the host and restores its names, settings, addresses and state.
/// Also looks for it on the host, where the kernel puts the hardware of a deleted namespace. Returns the
/// link on the host, which has another name if another link has its name; `None` if the device is
/// at neither place. Reports what is not as it was.
///
/// # Errors
/// The kernel refuses to move the device, or does not answer. The device may then be back, but not as
/// it was.
pub(crate) fn bring_back(
    former: &Former,
    sandbox: Option<&Connection>,
) -> anyhow::Result<Option<Link>> {
    let (host, own) = (Connection::open()?, Netns::own()?);
    let carried = sandbox.map(|it| carry(former, (it, &host, &own)));
    let link = match carried.transpose()?.flatten() {
        None => former.find_on_host(&host)?,
        carried => carried,
    };
    restore(&host, link, former)
}

/// Restores hardware that is on the host although its record says that it has left: the kernel put it
/// there when the sandbox ended, or a DEL could not restore its name. Only reports a failure, which
/// concerns another attachment. Returns the other records, each with its owner.
pub(crate) fn reclaim(host: &Connection) -> anyhow::Result<Vec<(String, Record)>> {
    let mut away = Vec::new();
    for (owner, record) in Record::all()? {
        let device = &record.device;
        let link = device.find_on_host(host)?.filter(|_| record.has_left);
        let restored = or_note(restore(host, link, device), GOING_ON).flatten();
        if restored.is_some_and(|it| it.name == device.name) {
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
    let (mut messages, host, own) = (Vec::new(), Connection::open()?, Netns::own()?);
    for (owner, record) in Record::all()?.into_iter().filter(|it| it.1.has_left) {
        let former = &record.device;
        let presence = presence(&owner, Some(&record.netns), Witness::presence);
        let presence = presence.unwrap_or_else(|it| Presence::Unknown(format!("{it:#}")));
        if let Presence::Present(_, sandbox) = &presence
            && former.find_in(sandbox, &own)?.is_some()
        {
            continue;
        }
        let place = match former.find_on_host(&host)? {
            Some(it) => format!("is on the host as {}, but not as it was", it.name),
            None if matches!(presence, Presence::Unknown(_) | Presence::Deserted(_)) => continue,
            None => former.absence().to_owned(),
        };
        messages.push(format!(
            "device {}, which {owner} had, {place}",
            former.name
        ));
    }
    Ok(messages)
}

/// Moves the device from the sandbox to the host, by its former name if that is free. Renames it first
/// if possible, so programs of the host see no other name. Deletes its alternative names: processes in
/// the sandbox can add some, and the kernel moves no link with one that the host has. Returns `None` if
/// the device is not in the sandbox, or if another process has taken it from the host meanwhile.
fn carry(
    former: &Former,
    (sandbox, host, own): (&Connection, &Connection, &Netns),
) -> anyhow::Result<Option<Link>> {
    let Some(link) = former.find_in(sandbox, own)? else {
        return Ok(None);
    };
    let name = match host.find_link(&former.name)? {
        Some(_) => format!("dev{}", link.index),
        None => former.name.clone(),
    };
    let is_index_taken = host.find_link_by_index(link.index)?.is_some();
    let names = link.alternative_names.iter();
    let names = names.map(|it| Request::delete_alternative_name(link.index, it));
    let mut requests = vec![Request::change_link_number(link.index, &LinkChange::Down)];
    requests.extend(names.chain([Request::rename_link(link.index, &name)]));
    sandbox.attempt(&requests)?;
    let alias = former.alias.as_deref().unwrap_or_default();
    let moved = sandbox.execute([Request::move_link(link.index, own, &name, alias)]);
    let mut found = None;
    if moved.is_ok() {
        // Another program may have renamed it at once. The kernel keeps the index if it can.
        let is_it = |it: &Link| it.name == name || it.index == link.index && !is_index_taken;
        let mut links = host.links()?.into_iter();
        found = links.find(|it| former.is_like(it) && is_it(it));
    }
    if found.is_none() {
        found = former.find_on_host(host)?;
    }
    if found.is_none() {
        moved.with_context(|| format!("move {} back to the host", former.name))?;
    }
    Ok(found)
}

/// Makes `link`, a link of the host, as `former` was, and returns it; `None` if it is not there any more,
/// because another verb has restored it and moved it to another sandbox. Tries twice, because a refusal
/// may be temporary.
///
/// # Errors
/// The kernel does not answer.
fn restore(
    host: &Connection,
    mut link: Option<Link>,
    former: &Former,
) -> anyhow::Result<Option<Link>> {
    let mut refusals = Vec::new();
    for _ in 0..2 {
        let Some(now) = &link else {
            return Ok(None);
        };
        refusals = apply(host, now, former)?;
        if refusals.is_empty() {
            let name = former.name.clone();
            return Ok(Some(Link {
                name,
                ..now.clone()
            }));
        }
        link = host.find_link_by_index(now.index)?;
    }
    if let Some(now) = &link {
        let (name, reasons) = (&former.name, refusals.join("; "));
        let now = &now.name;
        note!("{name} is back on the host as {now}, but not as it was: {reasons}");
    }
    Ok(link)
}

/// Gives `link` the names, the settings, the addresses and the state of `former`. Changes nothing that
/// it has already. Tries all steps, and returns why some were not possible.
fn apply(host: &Connection, link: &Link, former: &Former) -> anyhow::Result<Vec<String>> {
    let change = |it: &LinkChange<'_>| Request::change_link_number(link.index, it);
    let now = Former::of(link);
    let (mut settings, now) = (former.settings(), now.settings());
    settings.retain(|it| !now.contains(it));
    let is_mac = |it: &LinkChange<'_>| matches!(it, LinkChange::Mac(_));
    let needs_down = link.name != former.name || settings.iter().any(is_mac);
    // A kernel before 6.2 renames no link that is up, and many drivers keep the MAC of one.
    let mut requests: Vec<_> = needs_down
        .then(|| change(&LinkChange::Down))
        .into_iter()
        .collect();
    let mut refusals = Vec::new();
    requests.extend(names(host, link, former, &mut refusals)?);
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

/// Returns the requests that give `link` its former names. Adds a refusal if another link has its name.
fn names(
    host: &Connection,
    link: &Link,
    former: &Former,
    refusals: &mut Vec<String>,
) -> anyhow::Result<Vec<Request>> {
    let (index, name) = (link.index, &former.name);
    let (has, had) = (&link.alternative_names, &former.alternative_names);
    let surplus = has.iter().filter(|it| !had.contains(it));
    let surplus = surplus.map(|it| Request::delete_alternative_name(index, it));
    let lacking = had.iter().filter(|it| !has.contains(it));
    let lacking = lacking.map(|it| Request::add_alternative_name(index, it));
    let mut rename = None;
    if link.name != *name {
        // udev makes the name that it would have given to the link an alternative name.
        match host.find_link(name)?.filter(|it| it.index != index) {
            None => rename = Some(Request::rename_link(index, name)),
            Some(other) => refusals.push(format!(
                "a {} link has its name: rename that link, then GC of the network or the next ADD \
                 tries again",
                other.kind
            )),
        }
    }
    Ok(surplus.chain(rename).chain(lacking).collect())
}
