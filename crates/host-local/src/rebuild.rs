//! Rebuilds the index from the lease files, and releases leases that no DEL would release.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::{note, or_note};

use crate::directory::{Content, Directory};
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
            if let Err(error) = outcome {
                note(format_args!("{error:#}"));
            }
        }
    }
    index.replace(&old, &kept)?;
    index.settle(leases);
    Ok(())
}

/// Returns the addresses that would remain leased after [`rebuild`]; changes nothing.
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

/// The result of reading all leases.
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
        let is_stale = |it: &Record| it.boot != boot && earlier == EarlierBoot::Release;
        let mut findings = Self::default();
        for address in leases.addresses()? {
            let examined = or_note(examine(leases, address, known), "the lease stays");
            if let Some((content, record)) = examined.flatten() {
                findings.add(content, record, is_stale);
            }
        }
        Ok(findings)
    }

    fn add(&mut self, content: Content, record: Record, is_stale: impl Fn(&Record) -> bool) {
        let reason = match content {
            Content::Empty => "its file is empty, so no DEL can release it".into(),
            Content::Garbled => "its file names no container, so no DEL can release it".into(),
            Content::Holder(holder) if is_stale(&record) => {
                format!("{holder} leased it before the machine's last boot")
            }
            Content::Holder(holder) => {
                self.kept.entry(holder).or_default().push(record);
                return;
            }
        };
        self.stale.insert(record.address, reason);
    }
}

/// Returns the content and the record of the lease file of `address`; `None` if there is no file.
/// The record comes from `known`. If `known` has none, it is a new record with the current boot ID.
///
/// Reads the lease file even if `known` has a record with its identity: with a coarse clock, a
/// later file may have the same inode and change time.
fn examine(
    leases: &Directory,
    address: IpAddr,
    known: &Records,
) -> anyhow::Result<Option<(Content, Record)>> {
    let (Some(identity), Some(content)) = (leases.identity(address)?, leases.content(address)?)
    else {
        return Ok(None);
    };
    let records = match &content {
        Content::Holder(holder) => known.get(holder),
        Content::Empty | Content::Garbled => None,
    };
    let is_about = |it: &&Record| it.address == address && it.identity == identity;
    let record = match records.into_iter().flatten().find(is_about) {
        Some(record) => record.clone(),
        None => Record {
            address,
            identity,
            boot: boot_id()?,
        },
    };
    Ok(Some((content, record)))
}

#[cfg(test)]
mod tests;
