//! Rebuilds the index from the lease files, and releases leases that no DEL would release.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::{note, note_failure, or_note};

use crate::directory::{Content, Directory, Identity};
use crate::files::Files;
use crate::index::{Record, Records, boot_id};
use crate::storage::EarlierBoot;

/// Reads all leases and rebuilds the index.
///
/// Removes empty and garbled lease files. If `earlier` is [`EarlierBoot::Release`], releases the
/// leases of an earlier boot. A lease is from an earlier boot if its record in the index has
/// another boot ID, and if the lease's file is still the file that the record identifies. All other
/// leases stay. A lease without a record gets a record with the current boot ID.
///
/// If `earlier` is [`EarlierBoot::Undecided`], the index stays untrusted. So the next verb rebuilds
/// it again, and can then release the leases of an earlier boot.
///
/// # Errors
/// The leases cannot be read, or the index cannot be written. In both cases, the index is not
/// trusted.
pub(crate) fn rebuild(files: &Files, earlier: EarlierBoot) -> anyhow::Result<()> {
    let Files { leases, index, .. } = files;
    index.distrust();
    leases.watch();
    let old = index.read_all();
    let Findings { kept, stale } = Findings::of(leases, &old, earlier)?;
    if !stale.is_empty() {
        let outcomes = leases.remove(stale.keys().copied());
        for ((address, reason), outcome) in stale.into_iter().zip(outcomes) {
            note(format_args!("release {address}: {reason}"));
            note_failure(outcome);
        }
    }
    index.replace(&old, &kept)?;
    match earlier {
        EarlierBoot::Undecided => index.distrust(),
        EarlierBoot::Release | EarlierBoot::Keep => index.settle(leases),
    }
    Ok(())
}

/// Returns the addresses that would remain leased after [`rebuild`], for STATUS; changes nothing.
///
/// # Errors
/// The leases cannot be read.
pub(crate) fn survivors(files: &Files, earlier: EarlierBoot) -> anyhow::Result<BTreeSet<IpAddr>> {
    let Files { leases, index, .. } = files;
    let Findings { stale, .. } = Findings::of(leases, &index.read_all(), earlier)?;
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
    fn of(leases: &Directory, known: &Records, earlier: EarlierBoot) -> anyhow::Result<Self> {
        let boot = boot_id()?;
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
                    let mut records = known.get(&holder).into_iter().flatten();
                    let is_it = |it: &&Record| it.address == address && it.identity == identity;
                    let record = records.find(is_it).cloned().unwrap_or_else(|| Record {
                        address,
                        identity,
                        boot: boot.clone(),
                    });
                    if record.boot == boot || earlier != EarlierBoot::Release {
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

/// Returns the identity and the content of the lease file of `address`; `None` if there is no file.
///
/// The caller compares both with a record. The identity alone does not suffice: with a coarse
/// clock, a later file of another holder may have the same inode and change time.
fn identified(leases: &Directory, address: IpAddr) -> anyhow::Result<Option<(Identity, Content)>> {
    Ok(leases.identity(address)?.zip(leases.content(address)?))
}

#[cfg(test)]
mod tests;
