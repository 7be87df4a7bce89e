//! Ranges of addresses, and range sets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use cni::{Error, keys};
use ipnetwork::IpNetwork;

use crate::RawRange;

/// Consecutive addresses of one subnet.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{first}-{last}")]
pub struct Range {
    /// The subnet, without host bits.
    pub subnet: IpNetwork,
    /// The first address that may be leased.
    pub first: IpAddr,
    /// The last address that may be leased.
    pub last: IpAddr,
    /// Gateway in the result; it may be outside the subnet, and is never leased. `None` for a subnet
    /// of one or two addresses without the key `gateway`.
    pub gateway: Option<IpAddr>,
    /// Parts of the subnet that are leased on request only.
    pub exclude: Vec<IpNetwork>,
}

/// Ranges of one IP family; a container gets one address of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

impl Range {
    /// Parses `raw`, one configured range. `at` is its key in the configuration, for error
    /// messages.
    ///
    /// # Errors
    /// Code 7: a value is invalid, or `subnet` is missing. The error names the key.
    pub fn parse(raw: &RawRange, at: &str) -> Result<Self, Error> {
        let subnet = parse_subnet(&raw.subnet)
            .map_err(|reason| Error::invalid(format!("{at}.subnet"), reason))?;
        let lowest = number(subnet.network());
        // Each address of such a subnet is one of a host (RFC 3021 and RFC 6164).
        let is_small = number(subnet.broadcast()) - lowest < 2;
        let second = address(lowest.saturating_add(u128::from(!is_small)), subnet);
        let inside = |text: &str, key: &str, default: IpAddr| {
            let key = format!("{at}.{key}");
            let address = keys::address(text, &key)?.unwrap_or(default);
            if subnet.contains(address) {
                return Ok(address);
            }
            let reason = format!("{address} is not in subnet {subnet}");
            Err(Error::invalid(key, reason))
        };
        // Without `rangeEnd`, an IPv4 range ends before the broadcast address of its subnet.
        let has_broadcast = subnet.is_ipv4() && !is_small;
        let highest = number(subnet.broadcast()).saturating_sub(u128::from(has_broadcast));
        let first = inside(&raw.range_start, "rangeStart", second)?;
        let last = inside(&raw.range_end, "rangeEnd", address(highest, subnet))?;
        if number(first) > number(last) {
            let reason = format!("{first} is after rangeEnd {last}");
            return Err(Error::invalid(format!("{at}.rangeStart"), reason));
        }
        let key = format!("{at}.gateway");
        let gateway = keys::address(&raw.gateway, &key)?.or((!is_small).then_some(second));
        if let Some(gateway) = gateway.filter(|it| it.is_ipv4() != subnet.is_ipv4()) {
            let reason = format!("{gateway} is not of the family of {subnet}");
            return Err(Error::invalid(key, reason));
        }
        Ok(Self {
            subnet,
            first,
            last,
            gateway,
            exclude: parse_exclude(&raw.exclude, subnet, &format!("{at}.exclude"))?,
        })
    }

    /// Gives a range of two addresses without gateway the second one as gateway, and a range of one
    /// none. The caller is a plugin that makes the host the gateway.
    pub fn with_gateway(mut self) -> Self {
        let second = number(self.subnet.network()) + 1;
        let is_inside = second == number(self.subnet.broadcast());
        let second = is_inside.then(|| address(second, self.subnet));
        self.gateway = self.gateway.or(second);
        self
    }

    /// Returns the addresses of the range as numbers.
    pub fn numbers(&self) -> RangeInclusive<u128> {
        number(self.first)..=number(self.last)
    }

    /// Returns whether `address` is between the first and last address, even if it is the gateway
    /// or excluded.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && self.numbers().contains(&number(address))
    }
}

impl RangeSet {
    /// Combines `ranges` into a set. `at` is the key of the set in the configuration, for error
    /// messages.
    ///
    /// # Errors
    /// Code 7: there is no range, families are mixed, or ranges overlap.
    pub fn new(ranges: Vec<Range>, at: &str) -> Result<Self, Error> {
        let Some(first) = ranges.first() else {
            return Err(Error::invalid(at, "a range set needs at least one range"));
        };
        let is_other = |it: &&Range| it.subnet.is_ipv4() != first.subnet.is_ipv4();
        if let Some(other) = ranges.iter().find(is_other) {
            let (first, other) = (first.subnet, other.subnet);
            let reason =
                format!("{first} and {other} are of different families; give each its own set");
            return Err(Error::invalid(at, reason));
        }
        match overlap(&ranges.iter().collect::<Vec<_>>()) {
            Some(reason) => Err(Error::invalid(at, reason)),
            None => Ok(Self { ranges }),
        }
    }

    /// Returns the set after [`Range::with_gateway`] for each range.
    pub fn with_gateways(self) -> Self {
        Self {
            ranges: self.ranges.into_iter().map(Range::with_gateway).collect(),
        }
    }

    /// Returns the ranges in the order in which their addresses are leased.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the range that contains `address`; `None` if no range does.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(address))
    }

    /// Returns whether `address` is the gateway of a range.
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        self.ranges
            .iter()
            .any(|range| range.gateway == Some(address))
    }

    /// Returns the last address, as a number, of the excluded part that contains `address`. Returns
    /// `None` if `address` is not excluded.
    pub fn end_of_exclusion(&self, address: IpAddr) -> Option<u128> {
        let excluded = self.ranges.iter().flat_map(|range| &range.exclude);
        let around = excluded.filter(|network| network.contains(address));
        around.map(|network| number(network.broadcast())).max()
    }

    /// Converts a number to an address of the set's family. Never returns `None`, because every set
    /// has a range.
    pub fn address(&self, number: u128) -> Option<IpAddr> {
        let range = self.ranges.first()?;
        Some(address(number, range.subnet))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

/// Returns a message that names two overlapping ranges; `None` if no ranges overlap.
pub(crate) fn overlap(ranges: &[&Range]) -> Option<String> {
    let mut pairs = ranges.iter().enumerate().flat_map(|(index, one)| {
        let others = ranges.iter().skip(index + 1);
        others.map(move |other| (one, other))
    });
    let (one, other) = pairs.find(|(a, b)| a.contains(b.first) || b.contains(a.first))?;
    let (subnet, other_subnet) = (one.subnet, other.subnet);
    Some(format!(
        "{one} of {subnet} overlaps {other} of {other_subnet}"
    ))
}

/// Converts an address to a number, with which callers can compute the next address.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Converts a number to an address of the family of `like`.
pub(crate) fn address(number: u128, like: IpNetwork) -> IpAddr {
    match like {
        IpNetwork::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpNetwork::V6(_) => Ipv6Addr::from(number).into(),
    }
}

fn parse_subnet(text: &str) -> Result<IpNetwork, String> {
    if text.is_empty() {
        return Err("missing; every range needs a subnet, such as 10.1.0.0/16".into());
    }
    let parsed = text.parse::<IpNetwork>();
    let subnet = parsed.map_err(|error| format!("{text:?}: {error}"))?;
    let (network, prefix) = (subnet.network(), subnet.prefix());
    if !text.contains('/') {
        Err(format!("{text:?} has no prefix length"))
    } else if network != subnet.ip() {
        Err(format!(
            "{text} has host bits set; the network is {network}/{prefix}"
        ))
    } else {
        Ok(subnet)
    }
}

/// Parses the list `exclude` of a range. Its addresses and CIDRs must be within `subnet`.
fn parse_exclude(texts: &[String], subnet: IpNetwork, key: &str) -> Result<Vec<IpNetwork>, Error> {
    let networks = texts.iter().enumerate().map(|(index, text)| {
        let invalid =
            |reason: &str| Error::invalid(format!("{key}[{index}]"), format!("{text:?}{reason}"));
        let network: IpNetwork = text
            .parse()
            .map_err(|_| invalid(" is neither an address nor a CIDR"))?;
        if subnet.contains(network.network()) && subnet.contains(network.broadcast()) {
            return Ok(network);
        }
        Err(invalid(&format!(" is not within subnet {subnet}")))
    });
    networks.collect()
}

#[cfg(test)]
mod tests;
