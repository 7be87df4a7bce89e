//! CHECK: compares the leases with the result of ADD.

use anyhow::bail;
use cni::CheckRequest;

use crate::config::Config;
use crate::store::Store;

/// Checks that every address of `prevResult` within a range of this network is leased to the
/// attachment. The attachment must hold at least one address.
///
/// # Errors
/// An address that is not leased to the attachment.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    cni::step("compare");
    let leases = match Store::inspect(&config.storage, &request.network.name)? {
        Some(store) => store.leases_of(&request.attachment)?,
        None => Vec::new(),
    };
    let held: Vec<_> = leases.iter().map(|lease| lease.address).collect();
    if held.is_empty() {
        bail!("{} holds no address", request.attachment);
    }
    let reported = request
        .prev_result
        .iter()
        .flat_map(|result| &result.ips)
        .map(|ip| ip.address.ip());
    let is_ours = |address: &_| {
        config
            .sets
            .iter()
            .any(|set| set.range_of(*address).is_some())
    };
    let lost = reported
        .filter(is_ours)
        .filter(|address| !held.contains(address));
    let lost: Vec<_> = lost.map(|address| address.to_string()).collect();
    if lost.is_empty() {
        return Ok(());
    }
    bail!("{} does not hold {}", request.attachment, lost.join(", "))
}
