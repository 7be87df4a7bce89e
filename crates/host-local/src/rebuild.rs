//! Rebuilds the index from the files, and releases stale leases that no DEL would release.

use std::net::IpAddr;

use cni::note;

use crate::directory::{Content, Directory, Identity};
use crate::files::Files;
use crate::index::{BootId, Record, Records};
use crate::lease::Holder;
use crate::storage::EarlierBoot;

/// Reads all leases and rebuilds the index.
///
/// Removes empty and garbled files. Releases a lease of an earlier boot only if a record proves it
/// and the file still has the record's identity. Other leases stay and are recorded for the current
/// boot.
///
/// # Errors
/// The leases cannot be read, or the index cannot be written; it is not trusted then.
pub(crate) fn rebuild(files: &Files, earlier: EarlierBoot) -> anyhow::Result<()> {
    let Files { leases, index, .. } = files;
    index.invalidate();
    leases.watch();
    let old = index.read_all()?;
    let Findings {
        kept,
        mut taken,
        dead,
    } = Findings::of(leases, &old, earlier)?;
    for (address, reason) in &dead {
        note(format_args!("release {address}: {reason}"));
    }
    if !dead.is_empty() {
        let outcomes = leases.remove(dead.iter().map(|(address, _)| *address));
        for ((address, _), outcome) in dead.iter().zip(outcomes) {
            if let Err(error) = outcome {
                note(format_args!("{error:#}"));
                taken.push(*address);
            }
        }
    }
    index.replace(&old, &kept, &taken)?;
    index.settle(leases);
    Ok(())
}

/// Returns the addresses that would remain leased after [`rebuild`]; changes nothing.
///
/// # Errors
/// The leases cannot be read.
pub(crate) fn survivors(files: &Files, earlier: EarlierBoot) -> anyhow::Result<Vec<IpAddr>> {
    Ok(Findings::of(&files.leases, &files.index.read_all()?, earlier)?.taken)
}

/// Findings about the leases.
#[derive(Debug, Default)]
struct Findings {
    /// Records of the remaining leases.
    kept: Records,
    /// Addresses whose files remain.
    taken: Vec<IpAddr>,
    /// Addresses to release, with the reasons.
    dead: Vec<(IpAddr, String)>,
}

impl Findings {
    fn of(leases: &Directory, known: &Records, earlier: EarlierBoot) -> anyhow::Result<Self> {
        let boot = BootId::current()?;
        let mut findings = Self::default();
        for address in leases.addresses()? {
            match examine(leases, address, known).map(|found| judge(found, &boot, earlier)) {
                Ok(Verdict::Keep(holder, record)) => {
                    findings.kept.entry(holder).or_default().push(record);
                    findings.taken.push(address);
                }
                Ok(Verdict::Release(reason)) => findings.dead.push((address, reason)),
                Ok(Verdict::Gone) => {}
                Err(error) => {
                    note(format_args!("{error:#}; it is left as it is"));
                    findings.taken.push(address);
                }
            }
        }
        for records in findings.kept.values_mut() {
            records.sort_unstable_by_key(|record| record.address);
        }
        Ok(findings)
    }
}

/// The file of an address, and the boot in its record.
#[derive(Debug)]
struct Found {
    content: Content,
    address: IpAddr,
    identity: Identity,
    boot: Option<BootId>,
}

/// Reads the file even if it has a record: with a coarse clock, another file may have the same
/// inode and change time.
fn examine(leases: &Directory, address: IpAddr, known: &Records) -> anyhow::Result<Option<Found>> {
    let Some(identity) = leases.identity(address)? else {
        return Ok(None);
    };
    let Some(content) = leases.content(address)? else {
        return Ok(None);
    };
    let records = match &content {
        Content::Holder(holder) => known.get(holder).map(Vec::as_slice).unwrap_or_default(),
        Content::Empty | Content::Garbled => &[],
    };
    let is_about = |it: &&Record| it.address == address && it.identity == identity;
    Ok(Some(Found {
        boot: records.iter().find(is_about).map(|it| it.boot.clone()),
        content,
        address,
        identity,
    }))
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Keep(Holder, Record),
    Release(String),
    Gone,
}

fn judge(found: Option<Found>, boot: &BootId, earlier: EarlierBoot) -> Verdict {
    let Some(found) = found else {
        return Verdict::Gone;
    };
    let holder = match found.content {
        Content::Holder(holder) => holder,
        Content::Empty => {
            return Verdict::Release("its file is empty, so nobody would ever give it back".into());
        }
        Content::Garbled => {
            let reason = "its file names no container, so nobody would ever give it back";
            return Verdict::Release(reason.into());
        }
    };
    let recorded = found.boot.unwrap_or_else(|| boot.clone());
    if recorded != *boot && earlier == EarlierBoot::Release {
        return Verdict::Release(format!(
            "{holder} held it before the machine was last started"
        ));
    }
    let record = Record {
        address: found.address,
        identity: found.identity,
        boot: recorded,
    };
    Verdict::Keep(holder, record)
}

#[cfg(test)]
mod tests;
