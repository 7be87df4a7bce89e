//! Makes the index anew from the files, and gives back what nobody else ever would.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::Context as _;
use cni::note;

use crate::directory::{Content, Directory, Identity};
use crate::index::{BootId, Index, Record, Records};
use crate::lease::Holder;

/// What becomes of the leases of an earlier boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlierBoot {
    /// They are given back: no sandbox survives a reboot.
    Release,
    /// They stay.
    Keep,
}

/// Reads all leases and brings the index in line with them.
///
/// Empty and garbled files are removed. So are leases of an earlier boot, but only where a
/// record says that they are and the file still is the one of the record; others are kept
/// and recorded as of the present boot.
///
/// # Errors
/// The leases cannot be read, or the index cannot be written; it is not trusted then.
pub(crate) fn rebuild(
    leases: &Directory,
    index: &Index,
    earlier: EarlierBoot,
) -> anyhow::Result<()> {
    index.distrust();
    let boot = BootId::current()?;
    let old = index.read_all()?;
    let known = Known::of(&old);
    let mut new = Records::new();
    let mut taken = Vec::new();
    for address in leases.addresses()? {
        let verdict = examine(leases, address, &known).map(|found| judge(found, &boot, earlier));
        match verdict {
            Ok(Verdict::Keep(holder, record)) => {
                new.entry(holder).or_default().push(record);
                taken.push(address);
            }
            Ok(Verdict::Release(reason)) => {
                note(format_args!("release {address}: {reason}"));
                leases.remove(address)?;
            }
            Ok(Verdict::Gone) => {}
            Err(error) => {
                note(format_args!("{error:#}; it is left as it is"));
                taken.push(address);
            }
        }
    }
    for records in new.values_mut() {
        records.sort_unstable_by_key(|record| record.address);
    }
    index.replace(&old, &new, &taken)?;
    index.settle(leases);
    Ok(())
}

/// Records by the file that they are about.
struct Known<'a>(HashMap<(IpAddr, Identity), (&'a Holder, &'a BootId)>);

impl<'a> Known<'a> {
    fn of(records: &'a Records) -> Self {
        let all = records.iter().flat_map(|(holder, records)| {
            let of_holder = records.iter();
            of_holder.map(move |it| ((it.address, it.identity), (holder, &it.boot)))
        });
        Self(all.collect())
    }
}

/// The file of an address, and what is recorded of this very file.
struct Found {
    content: Content,
    address: IpAddr,
    identity: Identity,
    boot: Option<BootId>,
}

/// A file that is the one of its record says what it said then, and is not read again.
fn examine(
    leases: &Directory,
    address: IpAddr,
    known: &Known<'_>,
) -> anyhow::Result<Option<Found>> {
    let identity = leases
        .identity(address)
        .with_context(|| format!("look at the lease of {address}"))?;
    let found = |content, boot| Found {
        content,
        address,
        identity,
        boot,
    };
    if let Some((holder, boot)) = known.0.get(&(address, identity)) {
        let content = Content::Holder((*holder).clone());
        return Ok(Some(found(content, Some((*boot).clone()))));
    }
    let content = leases.content(address)?;
    Ok(content.map(|content| found(content, None)))
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
#[path = "rebuild_tests.rs"]
mod tests;
