//! DEL and GC: bring devices back to the host and release their leases.

use anyhow::bail;
use attach::single::remove_stale;
use attach::{Presence, Retired, Witness, forward, uses_link};
use cni::{DelRequest, GcRequest, InterfaceName, Verb, note};
use netlink::LinkKind;

use crate::record::{self, Record, presence};
use crate::transfer;

/// Brings the device back and releases the lease. The device may have another name in the sandbox,
/// and the sandbox may be gone. If the IPAM plugin uses the device to release the lease, the lease
/// comes first.
///
/// If the device is not found, the record of the sandbox decides: if it does not prove that the
/// sandbox is gone, DEL succeeds and keeps the lease until GC.
///
/// # Errors
/// The device cannot be moved. Its record stays, so that the next DEL or GC tries again.
/// A lease that does not need the device stays, too.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let owner = request.attachment.owner();
    let netns = request.netns.as_deref();
    let recorded = find_record(request)?;
    let place = netns.or(recorded.1.as_ref().map(|it| it.netns.as_path()));
    let presence = presence(&owner, place)?;
    let exists = matches!(presence, Presence::Present(..));
    let is_searched = recorded.1.is_some() || netns.is_some();
    let is_early = is_searched && exists && uses_link(&request.network).unwrap_or_default();
    let release = || {
        cni::step("release the lease");
        forward(&request.network, Verb::Del)
    };
    let early = if is_early { release() } else { Ok(()) };
    cni::step("return the device");
    let unsearched = (exists && !is_searched).then(|| "its sandbox exists".to_owned());
    if let Some(reason) = return_device(recorded, presence)?.or(unsearched) {
        note!(
            "the lease of {owner} stays, because its sandbox may exist ({reason}); `cnitool gc` \
             releases it later"
        );
        return Ok(());
    }
    early?;
    if !is_early {
        release()?;
    }
    cni::step("remove the record");
    Witness::remove(&owner)
}

/// Returns the record of the attachment. Writes one for a device that the reference moved into the
/// sandbox: the alias of the device is its name on the host.
///
/// Processes in the sandbox can change the alias. So the device must be hardware, or its alias must
/// be the key `device` of the configuration.
fn find_record(request: &DelRequest) -> anyhow::Result<(Retired, Option<Record>)> {
    let owner = request.attachment.owner();
    let recorded = Record::retire(&owner)?;
    if recorded.1.is_none()
        && let Some(netns) = &request.netns
        && let Some((_, sandbox)) = record::enter(&owner, netns)?
        && let Ok(witness) = Witness::find(&owner)
        && witness.map_or(Ok(true), |it| it.is_of(&sandbox, netns))?
        && let Some(link) = sandbox.find_link(request.attachment.interface.as_str())?
    {
        let configured: String = request.network.key("device").unwrap_or_default();
        let former = link.alias.clone().unwrap_or_default();
        let is_trusted = link.kind == LinkKind::Physical || former == configured;
        if former.parse::<InterfaceName>().is_ok() && is_trusted {
            Record::of_reference(owner.clone(), &link, (former, netns))?.write()?;
            return Record::retire(&owner);
        }
        note!(
            "{} in the sandbox is no device that this plugin moved there: not moved",
            link.name
        );
    }
    Ok(recorded)
}

/// Brings the devices of those attachments back that the runtime does not list, and calls GC of the
/// IPAM plugin.
///
/// # Errors
/// All errors of the steps. An attachment keeps its lease if its device cannot be brought back, or if
/// its sandbox may exist.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let mut owners = record::files().owners()?;
    owners.extend(Witness::all()?.into_keys());
    remove_stale(request, "return devices", owners, return_recorded)
}

/// Brings the device of the attachment `owner` back from the recorded sandbox, or from the host.
///
/// # Errors
/// The device cannot be brought back, or its sandbox may exist.
pub(crate) fn return_recorded(owner: &str) -> anyhow::Result<()> {
    let recorded = Record::retire(owner)?;
    let place = recorded.1.as_ref().map(|it| it.netns.as_path());
    let presence = presence(owner, place)?;
    if let Some(reason) = return_device(recorded, presence)? {
        bail!(
            "the lease of {owner} stays, because its sandbox may exist ({reason}); end it, then \
             repeat GC"
        );
    }
    Ok(())
}

/// Brings the device of an attachment back, if the attachment has a valid record, from its sandbox or the
/// host. Returns why processes in the sandbox may use the lease; `None` if they cannot.
///
/// Removes the record if the device is as it was, if another attachment has it, or if the record is
/// void: invalid, of another boot, or of a deleted virtual link. Keeps it otherwise, for GC.
fn return_device(
    (retired, record): (Retired, Option<Record>),
    presence: Presence,
) -> anyhow::Result<Option<String>> {
    let owner = &retired.owner;
    let (sandbox, unknown) = match presence {
        Presence::Present(_, sandbox) => (Some(sandbox), None),
        absent => (None, absent.reason()),
    };
    let mut is_awaited = unknown.is_some();
    if let Some(record) = record {
        match transfer::bring_back(&record, sandbox.as_ref())? {
            Some(now) if now.name == record.device.name => {
                // Without both records, a DEL after a killed one would not know that the lease is free.
                Witness::retire(owner);
                retired.remove()?;
                return Ok(None);
            }
            Some(_) => return Ok(None),
            None => {
                let is_same = |it: &Record| it.device.is_same(&record.device);
                let is_held = |it: &Record| it.owner != *owner && is_same(it);
                is_awaited |= record.device.is_physical() && !Record::all()?.iter().any(is_held);
                if unknown.is_none() {
                    note!("{} {}", record.device.name, record.device.absence());
                }
            }
        }
    }
    if !is_awaited {
        retired.remove()?;
    }
    Ok(unknown)
}
