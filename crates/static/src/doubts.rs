//! Values that are probably mistakes.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use crate::raw::RawConfig;

/// Returns a message for each address that `addresses` has twice. The interface plugins of this suite
/// refuse such a result.
pub fn doubts(ipam: &RawConfig) -> Vec<String> {
    let addresses = ipam.addresses.iter();
    let addresses = addresses.filter_map(|it| Some(it.address.parse::<IpNetwork>().ok()?.ip()));
    let mut seen = BTreeSet::new();
    let again: BTreeSet<_> = addresses.filter(|it| !seen.insert(*it)).collect();
    let message = |address| format!("ipam.addresses has {address} twice");
    again.into_iter().map(message).collect()
}
