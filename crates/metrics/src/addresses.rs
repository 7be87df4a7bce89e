//! Addresses of host-local's ranges, and its leases.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use node::{Lease, Node, Range, lease_directories};

use crate::family::{Family, Writer};
use crate::label::Text;

/// Addresses of all ranges.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// By network, set and range.
    ranges: BTreeMap<[Text; 3], Numbers>,
    /// Number of lease files that name no container, by network.
    unreadable: BTreeMap<Text, u64>,
}

/// Numbers of addresses in a range. A number above 2^64-1 counts as 2^64-1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    all: u64,
    used: u64,
    free: u64,
    resting: u64,
}

impl Addresses {
    /// Counts the addresses. Ranges with the same network and bounds count once, because a second
    /// sample with the same labels is invalid.
    pub fn of(node: &Node) -> Self {
        let mut addresses = Self::default();
        let sources = node.configuration.sources();
        for range in sources.flat_map(Range::all_of) {
            let network = range.source.name();
            let (set, bounds) = (range.set().to_string(), range.bounds());
            let labels = [network, &set, &bounds].map(Text::new);
            addresses.ranges.insert(labels, Numbers::of(node, &range));
            addresses.unreadable.entry(Text::new(network)).or_default();
        }
        for lease in node.leases.iter().filter(|it| it.holder.is_none()) {
            let network = Text::new(&lease.network);
            *addresses.unreadable.entry(network).or_default() += 1;
        }
        addresses
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let ranges = self.ranges.iter();
        writer.gauges(
            &RANGE,
            ranges.map(|(labels, it)| (range_labels(labels), it.all)),
        )?;
        let states = self.ranges.iter().flat_map(|(labels, it)| {
            let [network, set, range] = range_labels(labels);
            let states = [
                ("used", it.used),
                ("free", it.free),
                ("resting", it.resting),
            ];
            states.map(|(state, number)| ([network, set, range, ("state", state)], number))
        });
        writer.gauges(&ADDRESSES, states)?;
        let unreadable = self.unreadable.iter();
        writer.gauges(
            &UNREADABLE,
            unreadable.map(|(network, it)| ([("network", network.as_str())], *it)),
        )
    }
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
        let number = |it: u128| it.try_into().unwrap_or(u64::MAX);
        Self {
            all: number(range.size()),
            used: number(used.len() as u128),
            free: number(range.size().saturating_sub(taken as u128)),
            resting: number(resting.len() as u128),
        }
    }
}

fn range_labels([network, set, range]: &[Text; 3]) -> [(&'static str, &str); 3] {
    [
        ("network", network.as_str()),
        ("set", set.as_str()),
        ("range", range.as_str()),
    ]
}

const RANGE: Family = Family {
    name: "cni_range_addresses",
    unit: None,
    help: "Addresses that host-local can lease from the range, without the gateway and excluded ones.",
};

const ADDRESSES: Family = Family {
    name: "cni_addresses",
    unit: None,
    help: "Addresses of the range by state. Resting: released, and in the cooldown of reuseDelay. \
           Used includes excluded addresses that were leased on request.",
};

const UNREADABLE: Family = Family {
    name: "cni_leases_unreadable",
    unit: None,
    help: "Files of leases that name no container, so that no DEL can release them.",
};
