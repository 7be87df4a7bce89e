//! Records of the bandwidth that the kubelet allocated to a pod: one file for each attachment whose
//! ADD used such an allocation.
//!
//! Later verbs cannot read the allocation from the kubelet's checkpoint. The kubelet removes a
//! deleted pod from the checkpoint. After a forced deletion, the kubelet gives the pod's devices to
//! another pod while the first pod still exists.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use attach::{OwnerFiles, Writing};
use cni::{Attachment, GcRequest, note};
use tc::BitsPerSecond;

use crate::resource::Direction;

/// Returns whether the attachment with the tag `owner` ([`Attachment::owner`]) has a record: its ADD
/// limited it to the bandwidth of its devices.
pub fn exists(owner: &str) -> bool {
    files().has(owner)
}

/// Writes the record of the attachment with the tag `owner` ([`Attachment::owner`]). Replaces an
/// existing record.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(owner: &str, allocation: &Allocation) -> anyhow::Result<()> {
    files().write(owner, &allocation.to_string(), Writing::All)
}

/// Returns the allocation that the ADD of an attachment used. If there is no record, returns an
/// empty allocation.
///
/// # Errors
/// The record cannot be read.
pub(crate) fn read(attachment: &Attachment) -> anyhow::Result<Allocation> {
    let (files, owner) = (files(), attachment.owner());
    if !files.has(&owner) {
        return Ok(Allocation::default());
    }
    let allocation = files.find(&owner)?.parse();
    allocation.with_context(|| format!("parse the record of {owner} in {DIRECTORY}"))
}

/// Removes the record of the attachment with the tag `owner` ([`Attachment::owner`]), if there is
/// one.
///
/// # Errors
/// The file exists and cannot be removed.
pub(crate) fn remove(owner: &str) -> anyhow::Result<()> {
    files().retire(owner).remove()
}

/// Removes the records of those attachments of this network that the runtime does not list.
///
/// # Errors
/// All errors that occurred.
pub(crate) fn collect(request: &GcRequest) -> anyhow::Result<()> {
    let is_stale = request.stale();
    let owners = files().owners()?.into_iter().filter(|it| is_stale(it));
    cni::all(owners.map(|owner| {
        remove(&owner)?;
        note(format_args!(
            "removed the record of {owner}, which the runtime does not list"
        ));
        Ok(())
    }))
}

fn files() -> OwnerFiles {
    OwnerFiles(DIRECTORY.into())
}

const DIRECTORY: &str = "/run/cni/bandwidth";

/// The rates that the kubelet allocated to a pod: each is the sum of the pod's devices of a
/// resource such as `example.org/egress-10mbit`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// The rate towards the pod; `None` if the pod has no devices of ingress bandwidth.
    pub ingress: Option<BitsPerSecond>,
    /// The rate from the pod; `None` if the pod has no devices of egress bandwidth.
    pub egress: Option<BitsPerSecond>,
}

impl Allocation {
    /// Returns whether the kubelet allocated no bandwidth to the pod.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Writes a line for each direction that has a rate, in bit/s, such as `ingress 20000000`.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            (Direction::Ingress, self.ingress),
            (Direction::Egress, self.egress),
        ];
        for (direction, rate) in rates {
            if let Some(rate) = rate {
                writeln!(f, "{} {}", direction.word(), rate.bytes() * 8)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Allocation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut allocation = Self::default();
        for line in text.lines() {
            let (word, bits) = line.split_once(' ').context("a line has no rate")?;
            let rate = BitsPerSecond::try_from(bits.parse::<u64>()?)?;
            match word {
                "ingress" => allocation.ingress = Some(rate),
                "egress" => allocation.egress = Some(rate),
                _ => anyhow::bail!("{word:?} is no direction"),
            }
        }
        Ok(allocation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_again() {
        let rate = BitsPerSecond::try_from(20_000_000).ok();
        for [ingress, egress] in [[None, None], [rate, None], [None, rate], [rate, rate]] {
            let allocation = Allocation { ingress, egress };
            let text = allocation.to_string();
            assert_eq!(text.parse::<Allocation>().unwrap(), allocation, "{text:?}");
        }
    }

    #[test]
    fn another_text_is_refused() {
        for text in ["ingress", "ingress 1", "ingress x", "both 20000000", "\n"] {
            text.parse::<Allocation>().unwrap_err();
        }
    }
}
