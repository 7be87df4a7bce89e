//! DEL and GC: bring devices back to the host and release their leases.

use std::path::Path;

use attach::{Presence, Retired, Witness, forward, release_around, uses_link};
use cni::{DelRequest, GcRequest, InterfaceName, Verb, note};
use netlink::{Connection, LinkKind};

use crate::record::{self, Record};
use crate::transfer::{self, Place};

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
    let retired = record::files().retire(&owner);
    let has_device = retired.text().is_some() || netns.is_some();
    let uses_device = uses_link(&request.network).unwrap_or_default();
    let releases_early =
        uses_device && has_device && has_sandbox(&owner, netns).unwrap_or_default();
    let release = || {
        cni::step("release the lease");
        forward(&request.network, Verb::Del)
    };
    let early = if releases_early { release() } else { Ok(()) };
    cni::step("return the device");
    let place = return_device(retired, netns)?;
    let is_searched = place.is_some() || netns.is_some();
    if place.is_none()
        && let Some(netns) = netns
    {
        return_unrecorded(request, netns)?;
    }
    if let Some(reason) = remains(&owner, place.as_ref(), is_searched)? {
        note!(
            "the lease of {owner} stays, because its sandbox may exist ({reason}); `cnitool gc` \
             releases it later"
        );
        return Ok(());
    }
    early?;
    if !releases_early {
        release()?;
    }
    cni::step("remove the record");
    Witness::remove(&owner)
}

/// Returns whether the sandbox of `owner` exists, so that it may have the device. Without a record,
/// as after an ADD of the reference, the sandbox is the one at `netns`.
fn has_sandbox(owner: &str, netns: Option<&Path>) -> anyhow::Result<bool> {
    match (Witness::find(owner)?, netns) {
        (Some(witness), _) => Ok(matches!(witness.presence(), Presence::Present(..))),
        (None, Some(netns)) => Ok(Connection::open_if_present(netns)?.is_some()),
        (None, None) => Ok(false),
    }
}

/// Brings the devices of those attachments back that the runtime does not list, and calls GC of the
/// IPAM plugin.
///
/// # Errors
/// All errors of the steps. GC releases no lease if a device cannot be brought back, or if an
/// attachment may still use its lease.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    let mut owners = record::files().owners()?;
    owners.extend(Witness::all()?.into_keys());
    owners.retain(|it| is_stale(it));
    let release = || {
        cni::step("release leases");
        forward(&request.network, Verb::Gc)
    };
    let is_early =
        uses_link(&request.network).unwrap_or_default() && owners.iter().all(|it| is_known(it));
    release_around(is_early, release, || {
        cni::step("return devices");
        cni::all(owners.iter().map(|owner| {
            let place = return_device(record::files().retire(owner), None)?;
            match remains(owner, place.as_ref(), true)? {
                Some(reason) => anyhow::bail!(
                    "the leases stay, because the sandbox of {owner} may exist ({reason}); end it, \
                     then repeat GC"
                ),
                None => Ok(()),
            }
        }))
    })?;
    cni::step("remove records");
    cni::all(owners.iter().map(|owner| {
        note!("removed {owner}, which the runtime does not list");
        Witness::remove(owner)
    }))
}

/// Returns whether the sandbox of `owner` exists, or is gone for certain.
fn is_known(owner: &str) -> bool {
    let witness = Witness::find(owner);
    witness.is_ok_and(|it| !matches!(it.map(|it| it.presence()), Some(Presence::Unknown(_))))
}

/// Returns why processes in the sandbox of `owner` may use its lease; `None` if they cannot.
/// `is_searched` says whether the device was looked for in the sandbox.
fn remains(
    owner: &str,
    place: Option<&Place>,
    is_searched: bool,
) -> anyhow::Result<Option<String>> {
    if matches!(place, Some(Place::Home | Place::Renamed { .. })) {
        return Ok(None);
    }
    Ok(match Witness::find(owner)?.map(|it| it.presence()) {
        Some(Presence::Unknown(reason)) => Some(reason),
        Some(Presence::Present(..)) if !is_searched => Some("its sandbox exists".to_owned()),
        _ => None,
    })
}

/// Brings the device of a retired record back and returns where it is; `None` without a valid
/// record. Removes the record if the device is as it was, if another attachment has it, or if the
/// record is void: invalid, of another boot, or of a deleted virtual link. Keeps it otherwise, for GC.
pub(crate) fn return_device(
    retired: Retired,
    netns: Option<&Path>,
) -> anyhow::Result<Option<Place>> {
    let record = retired.text().map(|it| Record::parse(&retired.owner, it));
    let record = record.transpose()?;
    let Some(mut record) = record.flatten() else {
        retired.remove()?;
        return Ok(None);
    };
    let place = transfer::bring_back(&record, netns)?;
    transfer::report(&place, &record.device);
    match &place {
        Place::Renamed { now, .. } => {
            record.device.index = now.index;
            record.device.other_name = Some(now.name.clone());
            record.has_left = true;
            record.write(&retired.owner)?;
        }
        Place::Missing if record.device.is_physical() && record.has_left => {}
        Place::Home => {
            // Without both records, a DEL after a killed one would not know that the lease is free.
            Witness::retire(&retired.owner);
            retired.remove()?;
        }
        Place::Missing => retired.remove()?,
    }
    Ok(Some(place))
}

/// Brings a device back that the reference moved into the sandbox: its alias is its name on the
/// host.
///
/// Processes in the sandbox can change the alias. So the device must be hardware, or its alias must
/// be the key `device` of the configuration.
fn return_unrecorded(request: &DelRequest, netns: &Path) -> anyhow::Result<()> {
    let Some((_, sandbox)) = Connection::open_if_present(netns)? else {
        return Ok(());
    };
    let Some(link) = sandbox.find_link(request.attachment.interface.as_str())? else {
        return Ok(());
    };
    let configured: String = request.network.key("device").unwrap_or_default();
    let former = link.alias.clone().unwrap_or_default();
    let is_trusted = link.kind == LinkKind::Physical || former == configured;
    if former.parse::<InterfaceName>().is_err() || !is_trusted {
        note!(
            "{} in the sandbox is no device that this plugin moved there: not moved",
            link.name
        );
        return Ok(());
    }
    let mut record = Record::of_reference(&link, former, netns)?;
    let place = transfer::bring_back(&record, None)?;
    transfer::report(&place, &record.device);
    if let Place::Renamed { now, .. } = &place {
        record.device.index = now.index;
        record.device.other_name = Some(now.name.clone());
        record.write(&request.attachment.owner())?;
    }
    Ok(())
}
