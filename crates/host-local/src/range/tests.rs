use super::*;
use crate::allocate::leasable;

fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Result<Range, Error> {
    let raw = RawRange {
        subnet: subnet.into(),
        range_start: start.into(),
        range_end: end.into(),
        gateway: gateway.into(),
        ..RawRange::default()
    };
    Range::parse(&raw, "ipam.ranges[0][0]")
}

/// Returns the gateway as text, empty if there is none.
fn gateway(range: &Range) -> String {
    range.gateway.map_or_else(String::new, |it| it.to_string())
}

/// Subnets of one or two addresses have no address to spare.
#[test]
fn small_subnet_is_leased_whole_and_has_a_gateway_only_if_one_is_wanted() {
    for (subnet, bounds, second) in [
        ("10.1.0.0/31", "10.1.0.0-10.1.0.1", "10.1.0.1"),
        ("10.1.0.7/32", "10.1.0.7-10.1.0.7", ""),
        ("fd00::/127", "fd00::-fd00::1", "fd00::1"),
        ("fd00::7/128", "fd00::7-fd00::7", ""),
        ("255.255.255.255/32", "255.255.255.255-255.255.255.255", ""),
    ] {
        let plain = range(subnet, "", "", "").unwrap();
        assert_eq!(
            (plain.to_string().as_str(), gateway(&plain).as_str()),
            (bounds, "")
        );
        assert_eq!(gateway(&plain.with_gateway()), second);
    }
    let explicit = range("10.1.0.7/32", "", "", "169.254.1.1").unwrap();
    assert_eq!(gateway(&explicit.with_gateway()), "169.254.1.1");
}

fn refusal(range: Result<Range, Error>) -> String {
    let error = range.unwrap_err();
    assert_eq!(error.code(), 7);
    error.to_string()
}

#[test]
fn range_of_a_subnet_spares_network_and_broadcast_address() {
    let v4 = range("10.1.0.0/24", "", "", "").unwrap();
    assert_eq!(
        (v4.to_string().as_str(), gateway(&v4).as_str()),
        ("10.1.0.1-10.1.0.254", "10.1.0.1")
    );
    let v6 = range("fd00::/120", "", "", "").unwrap();
    assert_eq!(
        (v6.to_string().as_str(), gateway(&v6).as_str()),
        ("fd00::1-fd00::ff", "fd00::1")
    );
}

#[test]
fn explicit_bounds_are_used_as_given() {
    let explicit = range("10.1.0.0/23", "10.1.0.0", "10.1.0.255", "192.0.2.1").unwrap();
    assert_eq!(explicit.to_string(), "10.1.0.0-10.1.0.255");
    assert_eq!(gateway(&explicit), "192.0.2.1", "it may lie outside");
}

#[test]
fn invalid_range_is_refused_with_key_and_value() {
    for (range, expected) in [
        (range("", "", "", ""), ".subnet: missing"),
        (
            range("10.1.0.0", "", "", ""),
            ".subnet: \"10.1.0.0\" has no",
        ),
        (range("10.1.0.0/33", "", "", ""), ".subnet: \"10.1.0.0/33\""),
        (
            range("10.1.0.5/24", "", "", ""),
            ".subnet: 10.1.0.5/24 has host bits set; the network is 10.1.0.0/24",
        ),
        (
            range("10.1.0.0/24", "10.2.0.1", "", ""),
            ".rangeStart: 10.2.0.1 is not in subnet",
        ),
        (range("10.1.0.0/24", "x", "", ""), ".rangeStart: \"x\""),
        (
            range("10.1.0.0/24", "", "fd00::1", ""),
            ".rangeEnd: fd00::1 is not in subnet",
        ),
        (
            range("10.1.0.0/24", "10.1.0.9", "10.1.0.8", ""),
            ".rangeStart: 10.1.0.9 is after rangeEnd 10.1.0.8",
        ),
        (
            range("10.1.0.0/24", "", "", "fd00::1"),
            ".gateway: fd00::1 is not of the family",
        ),
    ] {
        let text = refusal(range);
        assert!(
            text.starts_with(&format!("ipam.ranges[0][0]{expected}")),
            "{text}"
        );
    }
}

#[test]
fn set_has_one_family_and_no_overlap() {
    let v4 = range("10.1.0.0/24", "", "", "").unwrap();
    let v6 = range("fd00::/64", "", "", "").unwrap();
    let inside = range("10.1.0.0/24", "10.1.0.9", "10.1.0.9", "").unwrap();
    for (ranges, expected) in [
        (vec![], "at least one range"),
        (
            vec![v4.clone(), v6],
            "10.1.0.0/24 and fd00::/64 are of different families",
        ),
        (
            vec![v4.clone(), inside.clone()],
            "10.1.0.1-10.1.0.254 of 10.1.0.0/24 overlaps 10.1.0.9-10.1.0.9",
        ),
        (
            vec![inside.clone(), v4.clone()],
            "10.1.0.9-10.1.0.9 of 10.1.0.0/24 overlaps 10.1.0.1-10.1.0.254",
        ),
    ] {
        let error = RangeSet::new(ranges, "ipam.ranges[0]").unwrap_err();
        assert_eq!(error.code(), 7);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let set = RangeSet::new(vec![v4], "ipam.ranges[0]").unwrap();
    let other = RangeSet::new(vec![inside], "ipam.ranges[1]").unwrap();
    let overlap = overlap(&[&set.ranges()[0], &other.ranges()[0]]);
    assert!(overlap.unwrap().contains("10.1.0.9-10.1.0.9"));
}

#[test]
fn size_counts_the_leasable_addresses() {
    let set = |ranges| leasable(&RangeSet::new(ranges, "").unwrap(), None).count();
    assert_eq!(set(vec![range("10.1.0.0/29", "", "", "").unwrap()]), 5);
    assert_eq!(
        set(vec![range("10.1.0.0/29", "10.1.0.3", "", "").unwrap()]),
        4
    );
    let both = vec![
        range("10.1.0.0/24", "10.1.0.1", "10.1.0.3", "").unwrap(),
        range("10.1.0.0/24", "10.1.0.10", "10.1.0.11", "").unwrap(),
    ];
    assert_eq!(set(both), 4);
}

fn excluding(subnet: &str, exclude: &[&str]) -> Result<Range, Error> {
    let raw = RawRange {
        subnet: subnet.into(),
        exclude: exclude.iter().map(|text| (*text).to_owned()).collect(),
        ..RawRange::default()
    };
    Range::parse(&raw, "ipam.ranges[0][0]")
}

#[test]
fn exclusions_are_addresses_and_cidrs_within_the_subnet() {
    let range = excluding("10.1.0.0/24", &["10.1.0.7", "10.1.0.128/25", "10.1.0.129"]).unwrap();
    let set = RangeSet::new(vec![range], "").unwrap();
    assert_eq!(leasable(&set, None).count(), 254 - 1 - 1 - 127);
    let end = |text: &str| set.end_of_exclusion(text.parse().unwrap());
    assert_eq!(
        end("10.1.0.129"),
        Some(number("10.1.0.255".parse().unwrap()))
    );
    assert_eq!(end("10.1.0.8"), None);
    for (exclude, expected) in [
        ("x", "exclude[0]: \"x\" is neither"),
        (
            "10.2.0.1",
            "exclude[0]: \"10.2.0.1\" is not within subnet 10.1.0.0/24",
        ),
        ("10.1.0.0/16", "exclude[0]: \"10.1.0.0/16\" is not within"),
        ("fd00::1", "exclude[0]: \"fd00::1\" is not within"),
    ] {
        let text = refusal(excluding("10.1.0.0/24", &[exclude]));
        assert!(
            text.starts_with(&format!("ipam.ranges[0][0].{expected}")),
            "{text}"
        );
    }
}
