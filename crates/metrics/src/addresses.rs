//! Counts the addresses in host-local's ranges, and lease files that name no container.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use node::{Lease, Node, Range, lease_directories};

use crate::family::{Family, Metric};
use crate::label::Text;

/// Numbers of addresses in a range. `all` counts neither the gateway nor excluded addresses, but
/// `used` includes excluded addresses that were leased on request. `resting` addresses are in the
/// cooldown after their release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    all: u128,
    used: u128,
    free: u128,
    resting: u128,
}

/// Counts the addresses of each range of host-local: all, used, free, and those in the cooldown
/// after their release. Also counts, for each network, the lease files that name no container.
/// Ranges with the same network, set and bounds count once, because a second sample with the same
/// labels is invalid.
pub(crate) fn count(node: &Node) -> Vec<Metric> {
    let mut ranges = BTreeMap::new();
    let mut unreadable = BTreeMap::<_, u64>::new();
    for range in node.configuration.sources().flat_map(Range::all_of) {
        let network = range.source.name();
        let labels = [network, &range.set.to_string(), &range.bounds()];
        ranges.insert(labels.map(Text::from), Numbers::of(node, &range));
        unreadable.entry([Text::from(network)]).or_default();
    }
    for lease in node.leases.iter().filter(|it| it.holder.is_none()) {
        let network = [lease.network.as_str().into()];
        *unreadable.entry(network).or_default() += 1;
    }
    let states = ranges.iter().flat_map(|(labels, it)| {
        let states = [
            ("used", it.used),
            ("free", it.free),
            ("resting", it.resting),
        ];
        states.map(|(state, number)| {
            let [network, set, range] = labels.clone();
            ([network, set, range, state.into()], number)
        })
    });
    let states = ADDRESSES.by(["network", "set", "range", "state"], states);
    let sizes = ranges.into_iter().map(|(labels, it)| (labels, it.all));
    vec![
        RANGE.by(["network", "set", "range"], sizes),
        states,
        UNREADABLE.by(["network"], unreadable),
    ]
}

impl Numbers {
    fn of(node: &Node, range: &Range<'_>) -> Self {
        let network = range.source.name();
        let directories = lease_directories(&range.source.network.list);
        let is_in_range = |it: &&Lease| {
            let is_in_directory = directories.iter().any(|directory| it.is_in(directory));
            it.network == network && is_in_directory && range.leases(it.address)
        };
        let leases = node.leases.iter().filter(is_in_range);
        let used: BTreeSet<IpAddr> = leases.map(|it| it.address).collect();
        let resting = node.resting.iter().filter(|(it, _)| it == network);
        let resting = resting.map(|(_, it)| *it).filter(|it| range.offers(*it));
        let resting: BTreeSet<_> = resting.filter(|it| !used.contains(it)).collect();
        let offered = used.iter().filter(|it| range.offers(**it)).count();
        let taken = offered.saturating_add(resting.len());
        Self {
            all: range.size(),
            used: used.len() as u128,
            free: range.size().saturating_sub(taken as u128),
            resting: resting.len() as u128,
        }
    }
}

const RANGE: Family = Family::gauges(
    "cni_range_addresses",
    "Addresses that host-local can lease from the range, without the gateway and excluded ones.",
);

const ADDRESSES: Family = Family::gauges(
    "cni_addresses",
    "Addresses of the range by state. Resting: released, and in the cooldown of reuseDelay. Used \
     includes excluded addresses that were leased on request.",
);

const UNREADABLE: Family = Family::gauges(
    "cni_leases_unreadable",
    "Files of leases that name no container, so that no DEL can release them.",
);
