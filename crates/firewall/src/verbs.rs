//! The verbs of the plugin `firewall`.

use std::collections::HashSet;
use std::net::IpAddr;

use anyhow::bail;
use attach::{Differences, Retired, host_link_name};
use cni::{
    AddRequest, AddResult, Answer, Answered, CheckRequest, DelRequest, Error, GcRequest,
    InterfaceName, StatusRequest, Undo, note, note_failure,
};
use netlink::{Connection, LinkKind};
use nft::Element;

use crate::desired::{self, Desired, address, permission};
use crate::firewalld::Sources;
use crate::record::Earlier;
use crate::{Config, installation, record};

/// Lets packets of the sandbox pass the host's firewall, and isolates the sandbox's bridge if
/// `ingressPolicy` requests this. Returns `prevResult` unchanged.
///
/// # Errors
/// An error of any step. The rollback then removes everything of the attachment. If an earlier ADD
/// has left a record of the attachment, the rollback removes nothing.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let (result, config, desired) = desired(request)?;
    if desired.elements.is_empty() {
        return Ok(answer.give(result)?);
    }
    if let Some(bridge) = desired::bridge(config.ingress_policy, result)? {
        expect_bridge(&bridge)?;
    }
    let owner = request.attachment.owner();
    cni::step("look for firewalld");
    let sources = Sources::wanted(&config, addresses(result))?;
    cni::step("write the record");
    let created = record::create(&owner, sources.as_ref());
    let mut undo = Undo::default();
    if !matches!(created, Ok(false)) {
        undo.push("remove the elements", || remove_owner(&owner, None));
    }
    let written = match created {
        Ok(false) => record::add_sources(&owner, sources.as_ref()),
        created => created.map(drop),
    };
    match written {
        Err(error) if sources.is_none() => {
            note!("RELOAD will not restore {owner}: {error:#}");
        }
        written => written?,
    }
    cni::step("add the elements and rules");
    let replaced = desired.install()?;
    if !replaced.is_empty() {
        note_earlier(&owner, &desired, &replaced);
    }
    if let Some(sources) = &sources {
        cni::step("add the addresses to the zone");
        sources.add()?;
    }
    Ok(answer.give_and_keep(result, undo)?)
}

/// Removes the attachment's elements, its addresses in firewalld's zone, and its record. If there
/// is no record, the Go plugin may have attached the sandbox. So DEL then also removes what the Go
/// plugin added to iptables and firewalld for the addresses in `prevResult`. A missing item counts
/// as removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("remove the elements");
    let owner = request.attachment.owner();
    let retired = record::files().retire(&owner);
    let elements = || installation::remove(|it| it == owner).map(drop);
    let result = request.prev_result.as_ref();
    let result = result.filter(|_| retired.text().is_none());
    let config = Config::parse(&request.network).ok();
    let Some((result, config)) = result.zip(config) else {
        return remove(vec![retired], None, elements);
    };
    let addresses = addresses(result);
    let removed_rules = installation::delete_accept_rules(&config, &addresses);
    let (sources, asked) = apart(Sources::unrecorded(&config, addresses));
    let removed = remove(vec![retired], sources, elements);
    cni::all([removed, removed_rules, asked])
}

/// Compares elements, chains, rules and firewalld's sources with the desired state.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 100: the attachment differs from the configuration. One error names all differences.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let (result, config, desired) = present(request)?;
    if desired.elements.is_empty() {
        return Ok(());
    }
    cni::step("compare");
    let mut differences = Differences::default();
    differences.extend(desired.differences(&request.attachment.owner())?);
    if let Some(sources) = Sources::wanted(&config, addresses(result))? {
        differences.extend(sources.differences()?);
    }
    differences.report_restorable(&request.attachment)
}

/// Checks the configuration, whether a required firewalld runs, and by a dry run whether the kernel
/// supports the rules.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the configuration requires firewalld, which does not run. Or D-Bus does not answer.
/// - Code 50: the kernel does not support a part of `nf_tables`, or this process has no access to
///   it.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    Sources::wanted(&config, Vec::new()).map_err(Error::unavailable)?;
    Ok(installation::dry_run(&config)?)
}

/// Removes everything of those attachments of this network that the runtime does not list.
///
/// # Errors
/// All errors of the steps. A failed step does not prevent the others.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    cni::step("remove the elements");
    let retired = record::files().retire_stale(&is_stale)?;
    remove(retired, None, || {
        for owner in installation::remove(&is_stale)? {
            note!("removed the permission of {owner}, which the runtime does not list");
        }
        Ok(())
    })
}

/// Restores the state that ADD left, for example after a flush of the rules. Existing elements stay
/// untouched, with one exception: this attachment again takes over the permission for an address
/// from an attachment that had the address before.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 100: the attachment has no record, as after a DEL.
/// - Code 100: the kernel refuses a request.
/// - Code 100: the addresses cannot be recorded or added to firewalld's zone, or D-Bus does not
///   answer. RELOAD restores the elements and rules even then.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let (result, config, desired) = present(request)?;
    if desired.elements.is_empty() {
        return Ok(());
    }
    let (attachment, owner) = (&request.attachment, request.attachment.owner());
    record::files().find(&owner)?;
    cni::step("put back the elements and rules");
    let restored = desired.restore(&record::earlier(&owner));
    // Callers stop RELOAD while a bus hangs, so firewalld comes last. The record lacks the addresses
    // if firewalld was started after ADD. If RELOAD cannot record them, it does not add them to the
    // zone, because DEL would not remove them.
    let recorded = Sources::wanted(&config, addresses(result)).and_then(|sources| {
        record::add_sources(&owner, sources.as_ref())?;
        Ok(sources)
    });
    let (sources, recorded) = apart(recorded);
    let added = sources.as_ref().map_or(Ok(()), |sources| {
        cni::step("add the addresses to the zone");
        sources.add()
    });
    if !record::files().has(&owner) {
        remove_owner(&owner, sources)?;
        bail!("{attachment} was deleted meanwhile");
    }
    cni::all([restored, recorded, added])
}

/// Checks that the link `name` is a bridge, because an ingress policy needs one. Packets between
/// two containers of `ptp`, for example, enter and leave through different links, so a policy would
/// drop them all.
fn expect_bridge(name: &InterfaceName) -> anyhow::Result<()> {
    let link = Connection::open()?.find_link(name.as_str())?;
    if link.is_some_and(|it| it.kind == LinkKind::Bridge) {
        return Ok(());
    }
    let reason = format!(
        "{name}, the first interface of prevResult, is no bridge; a policy needs the plugin `bridge`"
    );
    Err(Error::invalid("ingressPolicy", reason).into())
}

fn desired(request: &AddRequest) -> anyhow::Result<(&AddResult, Config, Desired)> {
    let result = request.chained()?;
    let config = Config::parse(&request.network)?;
    let desired = Desired::new(&config, &request.attachment, result)?;
    Ok((result, config, desired))
}

/// Returns what [`desired()`] returns, but isolates the port by its present name, because an operator
/// may have renamed the host's end of the veth pair since ADD.
fn present(request: &CheckRequest) -> anyhow::Result<(&AddResult, Config, Desired)> {
    let (result, config, desired) = desired(request)?;
    if desired.ports.is_empty() {
        return Ok((result, config, desired));
    }
    let attachment = &request.attachment;
    let end = attach::find_host_link(&Connection::open()?, attachment)?;
    let mut present = result.clone();
    let (name, interfaces) = (host_link_name(attachment), present.interfaces.iter_mut());
    for (interface, end) in interfaces.filter(|it| it.name == name).zip(&end) {
        interface.name.clone_from(&end.name);
    }
    let desired = Desired::new(&config, attachment, &present)?;
    Ok((result, config, desired))
}

/// Separates sources from an error, for a verb that does the rest of its work before it reports the
/// error.
fn apart(sources: anyhow::Result<Option<Sources>>) -> (Option<Sources>, anyhow::Result<()>) {
    match sources {
        Ok(sources) => (sources, Ok(())),
        Err(error) => (None, Err(error)),
    }
}

fn addresses(result: &AddResult) -> Vec<IpAddr> {
    result.ips.iter().map(|ip| ip.address.ip()).collect()
}

/// Removes everything of the attachment with the tag `owner`. Also removes the addresses of
/// `unrecorded` from firewalld's zone, even if no record lists them.
fn remove_owner(owner: &str, unrecorded: Option<Sources>) -> anyhow::Result<()> {
    let retired = record::files().retire(owner);
    let elements = || installation::remove(|it| it == owner).map(drop);
    remove(vec![retired], unrecorded, elements)
}

/// Removes the addresses that the `retired` (renamed) records list, and those of `unrecorded`, from
/// firewalld's zone. Then calls `elements`, which removes elements in `nf_tables`. Then gives the
/// permission for addresses back to the attachments that had it before, and removes the records. If
/// firewalld reports an error or does not answer, or if an address cannot be given back, the
/// records stay, because the next DEL needs them.
fn remove(
    retired: Vec<Retired>,
    unrecorded: Option<Sources>,
    elements: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let texts = retired.iter().filter_map(Retired::text);
    let recorded = texts.clone().filter_map(Sources::read);
    let sources = cni::all(recorded.chain(unrecorded).map(withdraw));
    let elements = elements();
    let earlier: Vec<_> = texts.flat_map(Earlier::read).collect();
    let needed = cni::all([sources, hand_back(&earlier)]);
    let records = match needed {
        Ok(()) => cni::all(retired.into_iter().map(Retired::remove)),
        Err(_) => Ok(()),
    };
    cni::all([needed, elements, records])
}

/// Removes `sources` from firewalld's zone, except for addresses that another attachment's record
/// lists.
fn withdraw(sources: Sources) -> anyhow::Result<()> {
    let others = record::texts();
    let others: Vec<_> = others.iter().filter_map(|it| Sources::read(it)).collect();
    sources.without(&others).remove()
}

/// Records the attachments from which this attachment took over addresses. DEL of this attachment
/// reads the record and gives them the permission back. Without the record, only a RELOAD of those
/// attachments could restore the permission.
fn note_earlier(owner: &str, desired: &Desired, replaced: &[Element]) {
    let earlier = replaced.iter().filter_map(|it| {
        Some(Earlier {
            address: address(&desired.table, it)?,
            owner: it.owner.clone(),
        })
    });
    let earlier: Vec<_> = earlier.collect();
    note_failure(record::add_earlier(owner, &earlier));
}

/// Gives the permission for each address back to the attachment from which a later ADD took it, if
/// that attachment still exists and no other attachment has the permission now. Of several, the last
/// one gets it.
fn hand_back(earlier: &[Earlier]) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    let existing = earlier.iter().rev();
    let existing = existing.filter(|it| record::files().has(&it.owner));
    let existing: Vec<_> = existing.filter(|it| seen.insert(it.address)).collect();
    if existing.is_empty() {
        return Ok(());
    }
    let elements = existing.iter().map(|it| permission(&it.owner, it.address));
    installation::hand_back(&elements.collect::<Vec<_>>())?;
    // A concurrent DEL of an earlier holder may have retired (renamed) that holder's record and
    // removed its elements before this function added them again. So this function removes them.
    let gone =
        |owner: &str| existing.iter().any(|it| it.owner == owner) && !record::files().has(owner);
    if existing.iter().any(|it| gone(&it.owner)) {
        installation::remove(gone)?;
    }
    Ok(())
}
