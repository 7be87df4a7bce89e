//! Brings a device back to the host, and restores what it was.

use anyhow::Context as _;
use attach::Presence;
use cni::{GOING_ON, note, or_note};
use netlink::{Connection, Link, LinkChange, Request, created};
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
    record: &Record,
    sandbox: Option<&Connection>,
) -> anyhow::Result<Option<Link>> {
    let host = Connection::open()?;
    let carried = sandbox.map(|it| carry(record, it, &host)).transpose()?;
    let link = record.find_on_host(&host)?;
    if link.is_none() {
        let name = &record.device.name;
        let moved = carried.unwrap_or(Ok(()));
        moved.with_context(|| format!("move {name} back to the host"))?;
    }
    restore(&host, link, &record.device)
}

/// Restores devices that are on the host although they have records: the kernel put them there when the
/// sandbox ended, or a DEL could not restore the name. Only reports a failure, which concerns another
/// attachment. Returns the other records.
pub(crate) fn reclaim(host: &Connection) -> anyhow::Result<Vec<Record>> {
    let mut away = Vec::new();
    for record in Record::all()? {
        let returned = record.find_on_host(host)?;
        let returned = returned.filter(|it| record.has_returned(it, &presence_of(&record)));
        let restored = or_note(restore(host, returned, &record.device), GOING_ON).flatten();
        if restored.is_some_and(|it| it.name == record.device.name) {
            record::files().retire(&record.owner).remove()?;
        } else {
            away.push(record);
        }
    }
    Ok(away)
}

/// Returns a message for each device that has left, and that neither the host has as it was nor its
/// sandbox.
pub(crate) fn unreturned() -> anyhow::Result<Vec<String>> {
    let (mut messages, host) = (Vec::new(), Connection::open()?);
    for record in Record::all()? {
        let presence = presence_of(&record);
        let place = match (record.find_on_host(&host)?, &presence) {
            (Some(it), _) if record.has_returned(&it, &presence) => {
                format!("is on the host as {}, but not as it was", it.name)
            }
            (Some(_), _) | (None, Presence::Unknown(_) | Presence::Deserted(_)) => continue,
            (None, Presence::Present(_, it)) if record.device.find_in(it)?.is_some() => continue,
            (None, _) => record.device.absence().to_owned(),
        };
        let (name, owner) = (&record.device.name, &record.owner);
        messages.push(format!("device {name}, which {owner} had, {place}"));
    }
    Ok(messages)
}

fn presence_of(record: &Record) -> Presence {
    let presence = presence(&record.owner, Some(&record.netns));
    presence.unwrap_or_else(|it| Presence::Unknown(format!("{it:#}")))
}

/// Moves the device from the sandbox to the host, by its former name if that is free. Renames it first
/// if possible, so programs of the host see no other name. Deletes its alternative names: processes in
/// the sandbox can add some, and the kernel moves no link with one that the host has. Returns the kernel's
/// answer to the move.
fn carry(
    record: &Record,
    sandbox: &Connection,
    host: &Connection,
) -> anyhow::Result<Result<(), netlink::Error>> {
    let former = &record.device;
    let Some(link) = former.find_in(sandbox)? else {
        return Ok(Ok(()));
    };
    let name = match host.find_link(&former.name)? {
        Some(_) => format!("dev{}", link.index),
        None => former.name.clone(),
    };
    let own = Netns::own()?;
    let mut requests = vec![Request::change_link_number(link.index, &LinkChange::Down)];
    let names = link.alternative_names.iter();
    requests.extend(names.map(|it| Request::delete_alternative_name(link.index, it)));
    requests.push(Request::rename_link(link.index, &name, None));
    requests.push(Request::move_link(link.index, &own, &name, &record.mark()));
    Ok(sandbox.attempt(&requests)?.pop().unwrap_or(Ok(())))
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
        link = host.find_link_by_index(now.index)?;
        if refusals.is_empty() {
            return Ok(link);
        }
    }
    if let Some(now) = &link {
        let (name, reasons) = (&former.name, refusals.join("; "));
        let now = &now.name;
        note!("{name} is back on the host as {now}, but not as it was: {reasons}");
    }
    Ok(link)
}

/// Gives `link` the names, the settings, the addresses and the state of `former`, all at once: a killed
/// process leaves it as it was found, or restored. Tries all steps, and returns why some were not possible.
fn apply(host: &Connection, link: &Link, former: &Former) -> anyhow::Result<Vec<String>> {
    let change = |it: &LinkChange<'_>| Request::change_link_number(link.index, it);
    let now = Former::of(link);
    let (mut settings, present) = (former.settings(), now.settings());
    settings.retain(|it| !present.contains(it));
    let is_named = (&now.name, &now.alias) == (&former.name, &former.alias);
    let is_mac = |it: &LinkChange<'_>| matches!(it, LinkChange::Mac(_));
    // A kernel before 6.2 renames no link that is up, and many drivers keep the MAC of one.
    let needs_down = !is_named || settings.iter().any(is_mac);
    let down = needs_down.then(|| change(&LinkChange::Down));
    let (mut requests, mut refusals) = (Vec::from_iter(down), Vec::new());
    requests.extend(names(host, link, former, &mut refusals)?);
    requests.extend(settings.iter().map(change));
    if let Some(name) = &former.master {
        match host.find_link(name)?.map(|it| it.index) {
            None => refusals.push(format!("its master {name} is missing")),
            Some(master) if link.master == Some(master) => {}
            Some(master) => requests.push(change(&LinkChange::Master(master))),
        }
    }
    let addresses = requests.len();
    let saved = former.saved_addresses.iter();
    requests.extend(saved.map(|it| it.addition_to(link.index)));
    let is_down = needs_down || !link.is_up;
    requests.extend((former.is_up && is_down).then(|| change(&LinkChange::Up)));
    let mut outcomes = host.attempt(&requests)?;
    let added = outcomes.split_off(addresses).into_iter().map(created);
    let refused = outcomes.into_iter().chain(added.map(|it| it.map(drop)));
    refusals.extend(refused.filter_map(Result::err).map(|it| it.to_string()));
    Ok(refusals)
}

/// Returns the requests that give `link` its former names and alias. Adds a refusal if another link has its
/// name.
fn names(
    host: &Connection,
    link: &Link,
    former: &Former,
    refusals: &mut Vec<String>,
) -> anyhow::Result<Vec<Request>> {
    let (index, name) = (link.index, &former.name);
    let (has, had) = (&link.alternative_names, &former.alternative_names);
    // udev makes the name that it would have given to the link an alternative name.
    let surplus = has.iter().filter(|it| !had.contains(it));
    let surplus = surplus.map(|it| Request::delete_alternative_name(index, it));
    let lacking = had.iter().filter(|it| !has.contains(it));
    let lacking = lacking.map(|it| Request::add_alternative_name(index, it));
    let mut rename = None;
    if (&link.name, &link.alias) != (name, &former.alias) {
        match host.find_link(name)?.filter(|it| it.index != index) {
            // One request, so the link has its mark until it has its name.
            None => {
                let alias = Some(former.alias.as_deref().unwrap_or_default());
                rename = Some(Request::rename_link(index, name, alias));
            }
            Some(other) => refusals.push(format!(
                "a {} link has its name: rename that link, then GC of the network or the next ADD \
                 tries again",
                other.kind
            )),
        }
    }
    Ok(surplus.chain(rename).chain(lacking).collect())
}
