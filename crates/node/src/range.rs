//! Parses ranges of addresses as host-local does. Skips invalid ranges, because STATUS of
//! host-local reports them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use facts::read;
use host_local::{RawConfig, RawRange, Storage, number};
use ipnetwork::IpNetwork;

use super::lookup::ranges_of;
use super::{Attached, Configuration, Node, Source};

/// A range of addresses from which host-local leases.
#[derive(Debug, Clone, derive_more::Display)]
#[display("{subnet}")]
pub struct Range<'a> {
    /// The subnet that contains the addresses.
    pub subnet: IpNetwork,
    own: host_local::Range,
    /// Number of the set that the range belongs to, in the order of the configuration. A pod gets
    /// one address of each set.
    pub set: usize,
    /// The plugin whose `ipam` section configures the range.
    pub source: Source<'a>,
}

impl<'a> Range<'a> {
    /// Returns the ranges that the plugin's `ipam` section configures; empty if the IPAM plugin is
    /// not host-local.
    pub fn all_of(source: Source<'a>) -> Vec<Self> {
        // The `ipam` section itself may have the keys of one range. This range comes before those
        // of the list `ranges`.
        let read = |keys| Some((read::<RawConfig>(keys)?, read::<RawRange>(keys)?));
        let Some((raw, own)) = ranges_of(source.plugin).and_then(read) else {
            return Vec::new();
        };
        let of_node = source.pod_cidrs().iter().map(|cidr| RawRange {
            subnet: cidr.to_string(),
            ..RawRange::default()
        });
        let single = [own].into_iter().chain(of_node).map(|it| vec![it]);
        let sets = single.chain(raw.ranges).enumerate();
        let ranges = sets.flat_map(|(set, ranges)| ranges.into_iter().map(move |it| (set, it)));
        let ranges = ranges.filter_map(|(set, raw)| {
            let own = host_local::Range::parse(&raw, "").ok()?;
            Some(Self {
                subnet: own.subnet,
                own,
                set,
                source,
            })
        });
        ranges.collect()
    }

    /// Returns the first and the last address as text: `10.1.0.1-10.1.0.254`.
    pub fn bounds(&self) -> String {
        self.own.to_string()
    }

    /// Returns whether host-local may lease `address` to a pod that does not request this address.
    pub fn offers(&self, address: IpAddr) -> bool {
        let mut excluded = self.own.exclude.iter();
        self.leases(address)
            && Some(address) != self.own.gateway
            && !excluded.any(|it| it.contains(address))
    }

    /// Returns the gateway's address with the subnet's prefix length; `None` if there is no gateway,
    /// or this length is not valid for the address.
    pub fn gateway(&self) -> Option<IpNetwork> {
        IpNetwork::new(self.own.gateway?, self.subnet.prefix()).ok()
    }

    /// Returns whether pods get a route by the gateway: `isDefaultGateway` is set, or the `ipam`
    /// section has a route of the range's IP version without `gw`.
    pub fn needs_gateway(&self) -> bool {
        let routes = self.source.ipam_routes().unwrap_or_default();
        let routes = routes.iter().filter(|it| it.gw.is_empty());
        let mut routes = routes.filter_map(|it| it.dst.parse::<IpNetwork>().ok());
        self.source.plugin.is_set("isDefaultGateway")
            || routes.any(|it| it.is_ipv4() == self.subnet.is_ipv4())
    }

    /// Returns whether the range contains `address`.
    pub fn leases(&self, address: IpAddr) -> bool {
        self.own.contains(address)
    }

    /// Returns whether the range contains addresses of `network`.
    pub fn leases_of(&self, network: IpNetwork) -> bool {
        let (first, last) = (self.own.first, self.own.last);
        let is_within = first <= network.broadcast() && network.network() <= last;
        network.is_ipv4() == self.subnet.is_ipv4() && is_within
    }

    /// Returns the number of addresses for which [`Self::offers`] returns `true`.
    pub fn size(&self) -> u128 {
        let numbers = self.own.numbers();
        let mut excluded = self.own.exclude.clone();
        excluded.extend(self.own.gateway.map(IpNetwork::from));
        excluded.retain(|it| it.is_ipv4() == self.subnet.is_ipv4());
        let spans = excluded.iter().map(|it| {
            let from = number(it.network()).max(*numbers.start());
            (from, number(it.broadcast()).min(*numbers.end()))
        });
        let all = numbers.end().saturating_sub(*numbers.start());
        let all = all.saturating_add(1);
        all.saturating_sub(count(spans.filter(|(from, to)| from <= to).collect()))
    }

    /// Returns whether both ranges are in the same set. host-local leases a pod's address from any
    /// range of a set, so a full range is no fault if another range of its set has free addresses.
    pub fn is_of_set_of(&self, other: &Self) -> bool {
        self.set == other.set && std::ptr::eq(self.source.plugin, other.source.plugin)
    }

    /// Returns whether an address is in both ranges.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.leases(other.own.first) || other.leases(self.own.first)
    }

    /// Returns whether the link with this name may have addresses of the range. It depends on the
    /// range's plugin:
    ///
    /// - `bridge`: true for the plugin's bridge and for VLAN links on it.
    /// - `ptp`: false for every link. [`Self::is_gateway_of_pairs`] covers the addresses of its
    ///   host ends.
    /// - Another plugin, such as macvlan: true for every link, because the node itself may be in
    ///   the pods' network.
    pub fn is_own_link(&self, name: &str) -> bool {
        let Some(bridge) = self.source.bridge() else {
            return !self.source.is_routed();
        };
        let vlan = name.strip_prefix(&format!("{bridge}."));
        name == bridge || vlan.is_some_and(|it| it.parse::<u16>().is_ok())
    }

    /// Returns whether the range's plugin is `ptp` and `address` is the gateway's address with the
    /// prefix length 32 (IPv4) or 128 (IPv6). `ptp` gives this address to the host ends of its veth
    /// pairs.
    pub fn is_gateway_of_pairs(&self, address: IpNetwork) -> bool {
        self.source.is_routed() && self.own.gateway.map(IpNetwork::from) == Some(address)
    }
}

/// Returns the released addresses that are still in their cooldown, each with the name of its
/// network. host-local does not lease these addresses unless a caller requests them.
pub(super) fn resting(configuration: &Configuration) -> anyhow::Result<BTreeSet<(String, IpAddr)>> {
    let mut resting = BTreeSet::new();
    for source in configuration.sources() {
        let raw = ranges_of(source.plugin).and_then(read);
        if let Some(Ok(storage)) = raw.map(|it| Storage::new(&it)) {
            let addresses = storage.resting(&source.network.list.name)?.into_iter();
            resting.extend(addresses.map(|it| (source.name().to_owned(), it)));
        }
    }
    Ok(resting)
}

/// Returns the subnets of the plugin's pods. If the configuration has no valid range, returns the
/// addresses of the bridge and of live pods, with their prefix lengths.
pub fn pod_networks(node: &Node, source: Source<'_>) -> Vec<IpNetwork> {
    let ranges = Range::all_of(source);
    if !ranges.is_empty() {
        return ranges.into_iter().map(|it| it.subnet).collect();
    }
    let bridge = source.bridge().and_then(|it| node.link_called(it));
    let bridges = bridge.into_iter().map(|it| it.index);
    let addresses = bridges.flat_map(|it| node.addresses_of(it));
    let own = addresses.filter(|it| !it.is_link_local);
    let is_of_network = |it: &&Attached| it.attachment.network.as_str() == source.name();
    let attached = node.alive().filter(is_of_network);
    let of_pods = attached.flat_map(Attached::addresses);
    own.map(|it| it.address).chain(of_pods).collect()
}

/// Returns how many different numbers the `spans` contain. A span is its first and its last number.
fn count(mut spans: Vec<(u128, u128)>) -> u128 {
    spans.sort_unstable();
    let (mut next, mut counted) = (0, 0_u128);
    for (from, to) in spans {
        let after = to.saturating_add(1);
        counted = counted.saturating_add(after.saturating_sub(from.max(next)));
        next = next.max(after);
    }
    counted
}
