//! Ranges of addresses, and range sets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::Error;
use ipnetwork::IpNetwork;

use crate::raw::RawRange;

/// Consecutive addresses of one subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The subnet, without host bits.
    pub subnet: IpNetwork,
    /// The first address that may be leased.
    pub first: IpAddr,
    /// The last address that may be leased.
    pub last: IpAddr,
    /// Gateway in the result; it may be outside the subnet, and is never leased.
    pub gateway: IpAddr,
    /// Parts of the subnet that are leased on request only.
    pub exclude: Vec<IpNetwork>,
}

/// Ranges of one family; a container gets one address of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

impl Range {
    /// Parses the range under the key `at`.
    ///
    /// # Errors
    /// Code 7 with the key and its value.
    pub fn parse(raw: &RawRange, at: &str) -> Result<Self, Error> {
        let subnet = parse_subnet(&raw.subnet, &format!("{at}.subnet"))?;
        let (lowest, highest) = bounds(subnet);
        let inside = |text: &str, key: &str, default: u128| -> Result<IpAddr, Error> {
            let key = format!("{at}.{key}");
            let address = parse_address(text, &key)?.unwrap_or_else(|| address(default, subnet));
            if subnet.contains(address) {
                return Ok(address);
            }
            Err(Error::invalid(
                key,
                format!("{address} is not in subnet {subnet}"),
            ))
        };
        let broadcast = u128::from(subnet.is_ipv4());
        let first = inside(&raw.range_start, "rangeStart", lowest.saturating_add(1))?;
        let last = inside(
            &raw.range_end,
            "rangeEnd",
            highest.saturating_sub(broadcast),
        )?;
        if number(first) > number(last) {
            let reason = format!("{first} is after rangeEnd {last}");
            return Err(Error::invalid(format!("{at}.rangeStart"), reason));
        }
        let key = format!("{at}.gateway");
        let gateway = parse_address(&raw.gateway, &key)?;
        let gateway = gateway.unwrap_or_else(|| address(lowest.saturating_add(1), subnet));
        if gateway.is_ipv4() != subnet.is_ipv4() {
            return Err(Error::invalid(
                key,
                format!("{gateway} is not of the family of {subnet}"),
            ));
        }
        Ok(Self {
            subnet,
            first,
            last,
            gateway,
            exclude: parse_exclude(&raw.exclude, subnet, &format!("{at}.exclude"))?,
        })
    }

    /// Returns whether `address` is between the first and last address. The gateway may be, too.
    pub fn contains(&self, address: IpAddr) -> bool {
        let span = number(self.first)..=number(self.last);
        address.is_ipv4() == self.first.is_ipv4() && span.contains(&number(address))
    }

    /// Returns the message for an overlap.
    pub fn overlap_with(&self, other: &Self) -> String {
        let (subnet, others) = (self.subnet, other.subnet);
        format!("{self} of {subnet} overlaps {other} of {others}")
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl RangeSet {
    /// Combines the ranges under the key `at` into a set.
    ///
    /// # Errors
    /// Code 7: there is no range, families are mixed, or ranges overlap.
    pub fn new(ranges: Vec<Range>, at: &str) -> Result<Self, Error> {
        let Some(first) = ranges.first() else {
            return Err(Error::invalid(at, "a range set needs at least one range"));
        };
        let is_other = |it: &&Range| it.subnet.is_ipv4() != first.subnet.is_ipv4();
        if let Some(other) = ranges.iter().find(is_other) {
            let reason = format!(
                "{} and {} are not of one family; a container gets one address of each set, so split it",
                first.subnet, other.subnet
            );
            return Err(Error::invalid(at, reason));
        }
        for (index, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges
                .iter()
                .skip(index + 1)
                .find(|other| other.overlaps(range))
            {
                return Err(Error::invalid(at, range.overlap_with(other)));
            }
        }
        Ok(Self { ranges })
    }

    /// Returns the ranges in the order of use.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the range with `address`.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(address))
    }

    /// Returns whether `address` is the gateway of a range.
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.gateway == address)
    }

    /// Returns the end of the excluded part with `address`, if it is excluded.
    pub fn end_of_exclusion(&self, address: IpAddr) -> Option<u128> {
        let excluded = self.ranges.iter().flat_map(|range| &range.exclude);
        let around = excluded.filter(|network| network.contains(address));
        around.map(|network| bounds(*network).1).max()
    }

    /// Returns a range of each set that have an address in common.
    pub fn overlap<'a>(&'a self, other: &'a Self) -> Option<(&'a Range, &'a Range)> {
        let pairs = self
            .ranges
            .iter()
            .flat_map(|a| other.ranges.iter().map(move |b| (a, b)));
        pairs.into_iter().find(|(a, b)| a.overlaps(b))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

/// Converts an address to a number for counting.
pub(crate) fn number(address: IpAddr) -> u128 {
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

fn bounds(subnet: IpNetwork) -> (u128, u128) {
    match subnet {
        IpNetwork::V4(subnet) => (
            u32::from(subnet.network()).into(),
            u32::from(subnet.broadcast()).into(),
        ),
        IpNetwork::V6(subnet) => (subnet.network().into(), subnet.broadcast().into()),
    }
}

fn parse_subnet(text: &str, key: &str) -> Result<IpNetwork, Error> {
    let invalid = |reason: String| Error::invalid(key, reason);
    if text.is_empty() {
        return Err(invalid(
            "missing; every range lies in a subnet, such as 10.1.0.0/16".into(),
        ));
    }
    let subnet: IpNetwork = match text.parse() {
        Ok(subnet) if text.contains('/') => subnet,
        Ok(_) => return Err(invalid(format!("{text:?} lacks the length of its prefix"))),
        Err(error) => return Err(invalid(format!("{text:?}: {error}"))),
    };
    if subnet.network() != subnet.ip() {
        let (network, prefix) = (subnet.network(), subnet.prefix());
        return Err(invalid(format!(
            "{text} has host bits set; the network is {network}/{prefix}"
        )));
    }
    let bits = if subnet.is_ipv4() { 32 } else { 128 };
    if subnet.prefix() > bits - 2 {
        return Err(invalid(format!(
            "{text} is too small; the longest prefix is /{}",
            bits - 2
        )));
    }
    Ok(subnet)
}

/// Parses addresses and CIDRs, which must be within `subnet`.
fn parse_exclude(texts: &[String], subnet: IpNetwork, key: &str) -> Result<Vec<IpNetwork>, Error> {
    let networks = texts.iter().enumerate().map(|(index, text)| {
        let invalid =
            |reason: &str| Error::invalid(format!("{key}[{index}]"), format!("{text:?}{reason}"));
        let network: IpNetwork = text
            .parse()
            .map_err(|_| invalid(" is neither an address nor a CIDR"))?;
        let (low, high) = bounds(network);
        let ends = [address(low, network), address(high, network)];
        if ends.iter().all(|end| subnet.contains(*end)) {
            return Ok(network);
        }
        Err(invalid(&format!(" is not within subnet {subnet}")))
    });
    networks.collect()
}

fn parse_address(text: &str, key: &str) -> Result<Option<IpAddr>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = text
        .parse()
        .map_err(|error| Error::invalid(key, format!("{text:?}: {error}")));
    parsed.map(Some)
}

#[cfg(test)]
mod tests;
