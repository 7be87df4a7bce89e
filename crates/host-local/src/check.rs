//! CHECK: compares the leases with the result of ADD.

use anyhow::ensure;
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
    ensure!(
        !leases.is_empty(),
        "{} holds no address",
        request.attachment
    );
    let is_ours = |it| config.sets.iter().any(|set| set.range_of(it).is_some());
    let is_held = |it| leases.iter().any(|lease| lease.address == it);
    let ips = request.prev_result.iter().flat_map(|result| &result.ips);
    let lost = ips.map(|ip| ip.address.ip());
    let lost = lost.filter(|it| is_ours(*it) && !is_held(*it));
    let lost: Vec<_> = lost.map(|address| address.to_string()).collect();
    ensure!(
        lost.is_empty(),
        "{} does not hold {}",
        request.attachment,
        lost.join(", ")
    );
    Ok(())
}
