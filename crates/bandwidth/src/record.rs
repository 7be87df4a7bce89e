//! Records: one file for each attachment with an egress limit or with bandwidth that the kubelet
//! allocated to its pod.
//!
//! DEL and GC retire (rename) the record before they remove the backstop (the second egress limit, in
//! `nf_tables`). RELOAD restores it and then looks for the record again.
//!
//! Later verbs cannot read the allocation from the kubelet's checkpoint. The kubelet removes a
//! deleted pod from the checkpoint. After a forced deletion, the kubelet gives the pod's devices to
//! another pod while the first pod still exists.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use attach::{OwnerFiles, Writing};
use tc::BitsPerSecond;

use crate::Direction;

/// Returns whether ADD or RELOAD limited what the attachment with the tag `owner`
/// ([`cni::Attachment::owner`]) sends. Returns `false` as soon as a DEL or GC has retired (renamed)
/// the record.
pub fn limits_egress(owner: &str) -> bool {
    read(owner).is_ok_and(|it| it.limits_egress)
}

/// Returns whether ADD limited the attachment with the tag `owner` to the bandwidth of its devices.
pub fn has_allocation(owner: &str) -> bool {
    // A record that cannot be read is one of an allocation, as far as known.
    read(owner).map_or(true, |it| !it.allocation.is_empty())
}

/// Returns the record of the attachment with the tag `owner`; an empty one if it has none.
///
/// # Errors
/// The record cannot be read.
pub(crate) fn read(owner: &str) -> anyhow::Result<Record> {
    let files = files();
    if !files.has(owner) {
        return Ok(Record::default());
    }
    let record = files.find(owner)?.parse();
    record.with_context(|| format!("parse the record of {owner} in {DIRECTORY}"))
}

/// Makes `record` the record of the attachment with the tag `owner`. Removes the file if the record
/// says nothing.
///
/// # Errors
/// The file cannot be written or removed.
pub(crate) fn write(owner: &str, record: &Record) -> anyhow::Result<()> {
    if *record == Record::default() {
        return files().retire(owner).remove();
    }
    files().write(owner, &record.to_string(), Writing::All)
}

/// Returns the directory of all records.
pub(crate) fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

const DIRECTORY: &str = "/run/cni/bandwidth";

/// What ADD or RELOAD records of an attachment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// What the kubelet allocated to its pod at ADD.
    pub allocation: Allocation,
    /// What it sends is limited, so it has a backstop.
    pub limits_egress: bool,
}

/// The rates that the kubelet allocated to a pod: each is the sum of the pod's devices of a
/// resource such as `example.org/egress-10mbit`. A direction without such devices is missing.
pub(crate) type Allocation = BTreeMap<Direction, BitsPerSecond>;

/// Writes a line for each direction that has an allocated rate, in bit/s, such as `ingress
/// 20000000`, and the line `limits egress` if this is so.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (direction, rate) in &self.allocation {
            writeln!(f, "{} {}", direction.word(), rate.bytes() * 8)?;
        }
        if self.limits_egress {
            writeln!(f, "{LIMITS_EGRESS}")?;
        }
        Ok(())
    }
}

impl FromStr for Record {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut record = Self::default();
        for line in text.lines() {
            if line == LIMITS_EGRESS {
                record.limits_egress = true;
                continue;
            }
            let (word, bits) = line.split_once(' ').context("a line has no rate")?;
            let rate = BitsPerSecond::try_from(bits.parse::<u64>()?)?;
            let direction = Direction::of(word);
            let direction = direction.with_context(|| format!("{word:?} is no direction"))?;
            record.allocation.insert(direction, rate);
        }
        Ok(record)
    }
}

const LIMITS_EGRESS: &str = "limits egress";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_again() {
        let rate = BitsPerSecond::try_from(20_000_000).unwrap();
        let [egress, ingress] = Direction::BOTH;
        for directions in [&[][..], &[ingress], &[egress], &[ingress, egress]] {
            for limits_egress in [false, true] {
                let record = Record {
                    allocation: directions.iter().map(|it| (*it, rate)).collect(),
                    limits_egress,
                };
                let text = record.to_string();
                assert_eq!(text.parse::<Record>().unwrap(), record, "{text:?}");
            }
        }
    }

    #[test]
    fn another_text_is_refused() {
        for text in ["ingress", "ingress 1", "ingress x", "both 20000000", "\n"] {
            text.parse::<Record>().unwrap_err();
        }
    }
}
