//! CHECK: compares the leases with the result of ADD.

use std::net::IpAddr;

use anyhow::bail;
use cni::CheckRequest;

use crate::config::Config;
use crate::store::Store;

/// Checks that the attachment holds every address of `prevResult` that is within a range of this
/// network, and at least one address.
///
/// # Errors
/// The attachment does not hold one of these addresses, or holds no address.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    cni::step("compare");
    let store = Store::inspect(&config.storage, &request.network.name)?;
    let held = store.map(|store| store.leases_of(&request.attachment));
    let leases = held.transpose()?.unwrap_or_default();
    if leases.is_empty() {
        bail!("{} holds no address", request.attachment);
    }
    let ips = request.prev_result.iter().flat_map(|result| &result.ips);
    let is_ours = |it: &IpAddr| config.sets.iter().any(|set| set.range_of(*it).is_some());
    let is_lost = |it: &IpAddr| leases.iter().all(|lease| lease.address != *it);
    let lost = ips
        .map(|ip| ip.address.ip())
        .filter(is_ours)
        .filter(is_lost);
    let lost: Vec<_> = lost.map(|address| address.to_string()).collect();
    if lost.is_empty() {
        return Ok(());
    }
    bail!("{} does not hold {}", request.attachment, lost.join(", "))
}
