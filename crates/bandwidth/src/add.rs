//! ADD: limits the bandwidth of a sandbox. After a failure, a rollback removes the new limits.

use cni::{AddRequest, Answer, Answered, Undo, or_note};

use crate::limiting::Limiting;
use crate::record::{self, Allocation, Record};
use crate::{Config, Direction};

/// Sets the configured limits, and records them and the bandwidth that the kubelet allocated to the
/// pod.
///
/// # Errors
/// An error of any step. The rollback has then removed the limits that this ADD created. A limit
/// that existed before this ADD has its old or its new rate.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let (config, allocation) = configured(request)?;
    let result = request.chained()?;
    if config.limits.is_empty() {
        let mut undo = Undo::default();
        remember(request, &config, allocation, &mut undo)?;
        return Ok(answer.give_and_keep(result, undo)?);
    }
    let limiting = Limiting::of(request, &config.traffic)?;
    let mut limits = Vec::new();
    for (direction, asked) in &config.limits {
        limits.push((*direction, limiting.limit(asked)?));
    }
    let mut undo = Undo::default();
    remember(request, &config, allocation, &mut undo)?;
    for (direction, limit) in limits {
        limiting.set(direction, &limit, &mut undo)?;
    }
    if config.limits.contains_key(&Direction::Egress) {
        limiting.delete_ifb()?;
    }
    Ok(answer.give_and_keep(result, undo)?)
}

/// Returns the configuration and the bandwidth that the kubelet allocated to the pod. The limits in
/// the configuration already follow from this allocation. The allocation is empty if the
/// configuration has no `podResources`.
fn configured(request: &AddRequest) -> anyhow::Result<(Config, Allocation)> {
    let config = Config::parse(&request.network)?;
    let Some(resources) = &config.pod_resources else {
        return Ok((config, Allocation::default()));
    };
    cni::step("read the allocation");
    let allocation = resources.allocated(request)?;
    Ok((config.with(&allocation), allocation))
}

/// Records for CHECK, RELOAD and the agent whether egress is limited, and the bandwidth that the
/// kubelet allocated to the pod. An earlier ADD's egress limit stays, so its mention in the record
/// does, too.
fn remember(
    request: &AddRequest,
    config: &Config,
    allocation: Allocation,
    undo: &mut Undo<'_>,
) -> anyhow::Result<()> {
    let owner = request.attachment.owner();
    // A record that cannot be read is replaced.
    let before = record::read(&owner).unwrap_or_default();
    let record = Record {
        allocation,
        limits_egress: before.limits_egress || config.limits.contains_key(&Direction::Egress),
    };
    if record == before {
        return Ok(());
    }
    cni::step("record the limits");
    let of_undo = owner.clone();
    undo.push("restore the record", move || {
        record::write(&of_undo, &before)
    });
    let written = record::write(&owner, &record);
    if record.allocation.is_empty() {
        // Limits work without the record, for example where /run is read-only.
        or_note(written, "the agent does not restore this limit");
        return Ok(());
    }
    written
}
