//! Rebuilds the index from the lease files, and releases leases that no DEL would release.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use cni::{note, note_failure, or_note};

use crate::directory::{Directory, Identity};
use crate::files::Files;
use crate::index::{Record, Records};
use crate::stale_lease_check::StaleLeaseCheck;
use crate::{Boot, Content, EarlierBoot, Holder};

/// Reads all leases and rebuilds the index.
///
/// Removes empty and garbled lease files. If `earlier` is [`EarlierBoot::Release`], and the caller
/// has the request's sandbox `own`, releases the leases of an earlier boot
/// ([`StaleLeaseCheck::is_of_earlier_boot`]), if the lease's file is still the file that the record
/// identifies. All other leases stay. A lease without a record gets a record with the current boot.
///
/// Only ADD has such a sandbox: DEL and GC may run in a container that sees no sandboxes. After
/// them, and with [`EarlierBoot::Undecided`], the index stays untrusted while it has records of
/// another boot, so that the next ADD can release these leases.
///
/// # Errors
/// The leases cannot be read, or the index cannot be written. In both cases, the index is not
/// trusted.
pub(crate) fn rebuild(
    files: &Files,
    earlier: EarlierBoot,
    own: Option<&Path>,
) -> anyhow::Result<()> {
    let Files { leases, index, .. } = files;
    index.distrust();
    leases.watch();
    let old = index.read_all();
    let now = Boot::current()?;
    let check = own.filter(|_| earlier == EarlierBoot::Release);
    let check = check.map(|own| StaleLeaseCheck::new(&files.network, now.clone(), Some(own)));
    let Findings { kept, stale } = Findings::of(leases, &old, (&now, check.as_ref()))?;
    let is_decided = check.is_some() || earlier == EarlierBoot::Keep;
    let is_complete = is_decided || kept.values().flatten().all(|it| it.boot.id == now.id);
    if !stale.is_empty() {
        let outcomes = leases.remove(stale.keys().copied());
        for ((address, reason), outcome) in stale.into_iter().zip(outcomes) {
            note!("release {address}: {reason}");
            note_failure(outcome);
        }
    }
    index.replace(&old, &kept)?;
    if is_complete {
        index.settle(leases);
    } else {
        index.distrust();
    }
    Ok(())
}

/// Returns the addresses that would remain leased after the [`rebuild`] of an ADD, for STATUS;
/// changes nothing.
///
/// # Errors
/// The leases cannot be read.
pub(crate) fn remaining_leases(
    files: &Files,
    earlier: EarlierBoot,
) -> anyhow::Result<BTreeSet<IpAddr>> {
    let Files { leases, index, .. } = files;
    let now = Boot::after_mark()?;
    let check = StaleLeaseCheck::new(&files.network, now.clone(), None);
    let check = Some(&check).filter(|_| earlier == EarlierBoot::Release);
    let Findings { stale, .. } = Findings::of(leases, &index.read_all(), (&now, check))?;
    let mut addresses = leases.addresses()?;
    addresses.retain(|address| !stale.contains_key(address));
    Ok(addresses)
}

/// The leases that a rebuild keeps, and the leases that it releases. A lease whose file cannot be
/// read is in neither list.
#[derive(Debug, Default)]
struct Findings {
    /// Records of the remaining leases.
    kept: Records,
    /// Addresses to release, with the reasons.
    stale: BTreeMap<IpAddr, String>,
}

impl Findings {
    /// Without a check, keeps all leases that name a holder.
    fn of(
        leases: &Directory,
        known: &Records,
        (now, check): (&Boot, Option<&StaleLeaseCheck<'_>>),
    ) -> anyhow::Result<Self> {
        let mut findings = Self::default();
        for address in leases.addresses()? {
            let lease = or_note(identified(leases, address), "the lease stays");
            let Some((identity, content)) = lease.flatten() else {
                continue;
            };
            let reason = match content {
                Content::Empty => "its file is empty, so no DEL can release it".into(),
                Content::Garbled => "its file names no container, so no DEL can release it".into(),
                Content::Holder(holder) => {
                    let mut record = record_of(known, &holder, (address, identity), now);
                    if !check.is_some_and(|it| it.is_of_earlier_boot(&holder, &record)) {
                        // A record without marker says too little to be judged after a reboot.
                        let is_same = record.boot.id == now.id && now.run.is_some();
                        if is_same || check.is_some() && record.boot.run.is_none() {
                            record.boot = now.clone();
                        }
                        findings.kept.entry(holder).or_default().push(record);
                        continue;
                    }
                    format!("{holder} leased it before the machine's last boot")
                }
            };
            findings.stale.insert(address, reason);
        }
        Ok(findings)
    }
}

/// Returns the record of a lease file; a new one if it is not among the known ones.
fn record_of(
    known: &Records,
    holder: &Holder,
    (address, identity): (IpAddr, Identity),
    now: &Boot,
) -> Record {
    let mut records = known.get(holder).into_iter().flatten();
    let is_it = |it: &&Record| it.address == address && it.identity == identity;
    let new = || Record {
        address,
        identity,
        boot: now.clone(),
        origin: None,
    };
    records.find(is_it).cloned().unwrap_or_else(new)
}

/// Returns the identity and the content of the lease file of `address`; `None` if there is no file.
///
/// The caller compares both with a record. The identity alone does not suffice: with a coarse
/// clock, a later file of another holder may have the same inode and change time.
fn identified(leases: &Directory, address: IpAddr) -> anyhow::Result<Option<(Identity, Content)>> {
    Ok(leases.identity(address)?.zip(leases.content(address)?))
}

#[cfg(test)]
mod tests;
