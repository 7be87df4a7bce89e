//! ADD: limits the bandwidth of a sandbox. After a failure, a rollback removes the new limits.

use attach::interface;
use cni::{AddRequest, Answer, Answered, Undo};
use netlink::Connection;

use crate::limiting::Limiting;
use crate::record::Allocation;
use crate::{Config, host_link, ifb, record};

/// Sets the configured limits, and records the bandwidth that the kubelet allocated to the pod. If
/// egress is limited, the result also lists the ifb, which queues the packets from the sandbox.
///
/// # Errors
/// An error of any step. The rollback has then removed the limits that this ADD created. A limit
/// that existed before this ADD has its old or its new rate.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let (config, allocation) = configured(request)?;
    let mut result = request.chained()?.clone();
    if config.is_idle() {
        remember(request, &config, &allocation, &mut Undo::default())?;
        return Ok(answer.give(&result)?);
    }
    let host = Connection::open()?;
    cni::step("find the pair");
    let host_link = host_link::find(request, &host)?;
    let limiting = Limiting {
        request,
        host: &host,
        host_link: &host_link,
        traffic: &config.traffic,
    };
    let ingress = limiting.limit(config.ingress.as_ref())?;
    let egress = limiting.limit(config.egress.as_ref())?;
    if egress.is_some() {
        ifb::expect_unlisted(&result, &request.attachment)?;
    }
    let mut undo = Undo::default();
    // The ifb comes first, because it works as a lock: of several concurrent ADDs of the
    // attachment, only one can create it.
    if let Some(limit) = &egress {
        let ifb = limiting.egress(limit, &mut undo)?;
        result.interfaces.push(interface(&ifb));
    }
    if let Some(limit) = &ingress {
        limiting.ingress(limit, &mut undo)?;
    }
    remember(request, &config, &allocation, &mut undo)?;
    let answered = answer.give(&result)?;
    undo.keep();
    Ok(answered)
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

/// Records the bandwidth that the kubelet allocated to the pod, for CHECK and RELOAD. If it
/// allocated none, removes the record that an earlier ADD of the attachment left.
///
/// If egress is limited, ADD calls this function only after it has created the ifb. If a concurrent
/// ADD of the attachment creates the ifb first, this ADD fails before it replaces the record of
/// that ADD.
fn remember(
    request: &AddRequest,
    config: &Config,
    allocation: &Allocation,
    undo: &mut Undo<'_>,
) -> anyhow::Result<()> {
    if config.pod_resources.is_none() {
        return Ok(());
    }
    let owner = request.attachment.owner();
    if allocation.is_empty() {
        return record::remove(&owner);
    }
    cni::step("record the allocation");
    if !record::exists(&owner) {
        let of_undo = owner.clone();
        undo.push("remove the record", move || record::remove(&of_undo));
    }
    record::write(&owner, allocation)
}
