//! Elements of sets whose keys are networks.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink::{IpVersion, octets};

use crate::{Element, Value};

/// Returns the elements of `owner` by which the set called `set` contains all addresses of those
/// `networks` that have this IP version. Networks may overlap or follow each other: the kernel refuses
/// such ranges, so this function joins them.
pub fn ranges(
    set: &str,
    version: IpVersion,
    networks: impl IntoIterator<Item = IpNetwork>,
    owner: &str,
) -> Vec<Element> {
    let networks = networks.into_iter();
    let networks = networks.filter(|it| IpVersion::of(it.ip()) == version);
    let mut networks: Vec<_> = networks
        .map(|it| (number(it.network()), number(it.broadcast())))
        .collect();
    networks.sort_unstable();
    let mut joined: Vec<(u128, u128)> = Vec::new();
    for (first, last) in networks {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    let element = |number| {
        let address = address(version, number)?;
        Some(Element::new(set, &[Value::Address(address)], owner))
    };
    let ends = joined.into_iter().flat_map(|(first, last)| {
        // A range up to the last address of all has no end.
        let after = last.checked_add(1).and_then(element);
        [element(first), after.map(Element::end)]
    });
    ends.flatten().collect()
}

/// Returns the address as a number.
fn number(address: IpAddr) -> u128 {
    let octets = octets(address).into_iter();
    octets.fold(0, |number, octet| number << 8 | u128::from(octet))
}

/// Returns the address that has this number; `None` if it is too large.
fn address(version: IpVersion, number: u128) -> Option<IpAddr> {
    Some(match version {
        IpVersion::V4 => IpAddr::from(u32::try_from(number).ok()?.to_be_bytes()),
        IpVersion::V6 => IpAddr::from(number.to_be_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: IpVersion, networks: &[&str]) -> Vec<Element> {
        let networks = networks.iter().map(|it| it.parse().unwrap());
        ranges("s", version, networks, "o")
    }

    fn element(address: &str) -> Element {
        Element::new("s", &[Value::Address(address.parse().unwrap())], "o")
    }

    #[test]
    fn networks_that_overlap_or_touch_are_one_range() {
        let networks = ["10.0.1.0/24", "10.0.0.0/24", "10.0.1.128/25", "10.0.3.7/24"];
        let ends = [
            element("10.0.0.0"),
            element("10.0.2.0").end(),
            element("10.0.3.0"),
            element("10.0.4.0").end(),
        ];
        assert_eq!(of(IpVersion::V4, &networks), ends);
    }

    #[test]
    fn versions_are_kept_apart() {
        let networks = ["10.0.0.0/24", "fd00::/64", "fd00:0:0:2::/64"];
        let ends = [
            element("fd00::"),
            element("fd00:0:0:1::").end(),
            element("fd00:0:0:2::"),
            element("fd00:0:0:3::").end(),
        ];
        assert_eq!(of(IpVersion::V6, &networks), ends);
    }

    #[test]
    fn last_range_of_all_addresses_has_no_end() {
        assert_eq!(of(IpVersion::V4, &["128.0.0.0/1"]), [element("128.0.0.0")]);
        assert_eq!(of(IpVersion::V6, &["8000::/1"]), [element("8000::")]);
    }
}
