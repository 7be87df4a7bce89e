//! Parses ranges like host-local, as far as needed to compare them. Invalid ones are skipped,
//! because the plugin reports them.

use std::fmt;
use std::net::IpAddr;

use cni::json;
use host_local::RawRange;
use ipnetwork::IpNetwork;
use node::{Attached, Node, Source};
use serde_json::{Map, Value};

/// A range of addresses, and the network that leases them.
#[derive(Debug, Clone, Copy)]
pub struct Range<'a> {
    /// The subnet that contains them.
    pub subnet: IpNetwork,
    first: IpAddr,
    last: IpAddr,
    gateway: IpAddr,
    /// Number of addresses that are excluded from leases.
    excluded: u128,
    /// The range set. A pod gets one address of each set.
    set: usize,
    source: Source<'a>,
}

impl<'a> Range<'a> {
    /// Returns the ranges of the plugin if its IPAM plugin is host-local.
    pub fn all_of(source: Source<'a>) -> Vec<Self> {
        let Some(ipam) = source
            .ipam()
            .filter(|_| source.ipam_type() == Some("host-local"))
        else {
            return Vec::new();
        };
        let sets = json::value(ipam, "ranges").and_then(Value::as_array);
        let sets = sets.into_iter().flatten().filter_map(Value::as_array);
        let ranges = sets.zip(1..).flat_map(|(ranges, set)| {
            let ranges = ranges.iter().filter_map(Value::as_object);
            ranges.map(move |it| (it, set))
        });
        let of_node = source.pod_cidrs().iter().map(|cidr| RawRange {
            subnet: cidr.to_string(),
            ..RawRange::default()
        });
        // Each CIDR of the node is a set of its own, besides those that are numbered from 1.
        let of_node = of_node.zip((1..).map(|it| usize::MAX - it));
        let own = raw(ipam).map(|it| (it, 0));
        let ranges = ranges.filter_map(|(keys, set)| Some((raw(keys)?, set)));
        let all = own.into_iter().chain(of_node).chain(ranges);
        all.filter_map(|(raw, set)| Self::of(&raw, (source, set)))
            .collect()
    }

    fn of(raw: &RawRange, (source, set): (Source<'a>, usize)) -> Option<Self> {
        let read = host_local::Range::parse(raw, "").ok()?;
        let range = Self {
            subnet: read.subnet,
            first: read.first,
            last: read.last,
            gateway: read.gateway,
            excluded: 0,
            set,
            source,
        };
        let excluded = read.exclude.into_iter().chain([range.gateway.into()]);
        let excluded = count(excluded.filter_map(|it| range.shared_with(it)));
        Some(Self { excluded, ..range })
    }

    /// Returns the network's name.
    pub fn network(&self) -> &'a str {
        self.source.name()
    }

    /// Returns the gateway's address, with the prefix length of the subnet.
    pub fn gateway(&self) -> Option<IpNetwork> {
        IpNetwork::new(self.gateway, self.subnet.prefix()).ok()
    }

    /// Returns the configuration file that contains it.
    pub fn file(&self) -> &'a str {
        &self.source.file.name
    }

    /// Returns the bridge of its pods; `None` if another plugin attaches them.
    pub fn bridge(&self) -> Option<&'a str> {
        self.source.bridge()
    }

    /// Returns whether the range contains `address`.
    pub fn leases(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4()
            && (number(self.first)..=number(self.last)).contains(&number(address))
    }

    /// Returns the number of addresses that can be leased.
    pub fn size(&self) -> u128 {
        let all = number(self.last)
            .saturating_sub(number(self.first))
            .saturating_add(1);
        all.saturating_sub(self.excluded)
    }

    /// Returns whether both ranges are of the same set, so host-local may lease from either.
    pub fn is_of_set_of(&self, other: &Self) -> bool {
        self.set == other.set && std::ptr::eq(self.source.plugin, other.source.plugin)
    }

    /// Returns whether both contain the same address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.leases(other.first) || other.leases(self.first)
    }

    /// Returns whether the name is of a link of the network itself: its bridge or a VLAN on it.
    /// Other plugins than `bridge` attach pods to networks that the node is part of.
    pub fn is_own_link(&self, name: &str) -> bool {
        match self.source.bridge() {
            Some(bridge) => {
                let vlan = name
                    .strip_prefix(bridge)
                    .and_then(|it| it.strip_prefix('.'));
                name == bridge || vlan.is_some_and(|it| it.parse::<u16>().is_ok())
            }
            None => self.source.plugin.program != "ptp",
        }
    }

    /// Returns the first and last address that `network` and the range share.
    fn shared_with(&self, network: IpNetwork) -> Option<(u128, u128)> {
        let from = number(network.network()).max(number(self.first));
        let to = number(last(network)).min(number(self.last));
        (network.is_ipv4() == self.first.is_ipv4() && from <= to).then_some((from, to))
    }
}

/// Returns the subnets of the plugin's pods: of its ranges, or without ranges in the configuration,
/// of its bridge and live pods.
pub fn pod_networks(node: &Node, source: Source<'_>) -> Vec<IpNetwork> {
    let ranges = Range::all_of(source);
    if !ranges.is_empty() {
        return ranges.into_iter().map(|it| it.subnet).collect();
    }
    let bridge = source.bridge().and_then(|it| node.link_called(it));
    let addresses = node.addresses.iter().filter(|it| !it.is_link_local);
    let of_bridge = addresses.filter(|it| bridge.is_some_and(|bridge| it.link == bridge.index));
    let attached = node.attached.iter().filter(|it| it.is_alive);
    let attached = attached.filter(|it| it.attachment.network.as_str() == source.name());
    let of_pods = attached.flat_map(Attached::addresses);
    of_bridge.map(|it| it.address).chain(of_pods).collect()
}

impl fmt::Display for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.subnet)
    }
}

fn raw(keys: &Map<String, Value>) -> Option<RawRange> {
    let raw = json::read(&Value::Object(keys.clone()), "").ok()?;
    Some(raw.value)
}

/// Returns how many numbers the spans contain, without duplicates.
fn count(spans: impl Iterator<Item = (u128, u128)>) -> u128 {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let mut next = 0;
    let mut counted: u128 = 0;
    for (from, to) in spans {
        let new = to.saturating_add(1).saturating_sub(from.max(next));
        counted = counted.saturating_add(new);
        next = next.max(to.saturating_add(1));
    }
    counted
}

fn last(network: IpNetwork) -> IpAddr {
    match network {
        IpNetwork::V4(it) => it.broadcast().into(),
        IpNetwork::V6(it) => it.broadcast().into(),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(it) => u32::from(it).into(),
        IpAddr::V6(it) => it.into(),
    }
}
