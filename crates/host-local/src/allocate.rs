//! The order in which the addresses of a range set are leased: a pure function of the ranges and of
//! the address that was leased last.

use std::iter;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::range::RangeSet;
use crate::{Range, number};

/// Returns all addresses of `set` that may be leased if no address is requested, each once. Omits
/// gateways and excluded addresses. The order is a round robin through the ranges. It starts after
/// `last`, the address that was leased last, or with the first range if `last` is in no range.
pub(crate) fn leasable(set: &RangeSet, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
    rotated(set, last).into_iter().flat_map(move |mut numbers| {
        let candidates = iter::from_fn(move || {
            loop {
                let candidate = set.address(numbers.next()?)?;
                match set.end_of_exclusion(candidate) {
                    Some(end) => numbers = end.checked_add(1)?..=*numbers.end(),
                    None => return Some(candidate),
                }
            }
        });
        candidates.filter(|it| !set.is_gateway(*it))
    })
}

/// Returns the ranges of the set as numbers, in the order of the round robin. The round robin
/// starts after `last`, in the middle of a range. So the list begins with the part of this range
/// after `last`, and ends with the part up to `last`.
fn rotated(set: &RangeSet, last: Option<IpAddr>) -> Vec<RangeInclusive<u128>> {
    let ranges = set.ranges();
    let mut spans: Vec<_> = ranges.iter().map(Range::numbers).collect();
    if let Some(last) = last
        && let Some(position) = ranges.iter().position(|range| range.contains(last))
    {
        let (first, end) = spans.remove(position).into_inner();
        spans.rotate_left(position);
        let last = number(last);
        if let Some(next) = last.checked_add(1) {
            spans.insert(0, next..=end);
        }
        spans.push(first..=last);
    }
    spans
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ipnetwork::IpNetwork;
    use proptest::prelude::*;

    use super::*;
    use crate::range::address;
    use crate::raw::RawRange;

    fn range(subnet: &str, start: &str, end: &str) -> Range {
        let raw = RawRange {
            subnet: subnet.into(),
            range_start: start.into(),
            range_end: end.into(),
            ..RawRange::default()
        };
        Range::parse(&raw, "").unwrap()
    }

    fn set(ranges: Vec<Range>) -> RangeSet {
        RangeSet::new(ranges, "").unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn next_free(
        set: &RangeSet,
        last: Option<IpAddr>,
        is_taken: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        leasable(set, last).find(|it| !is_taken(*it))
    }

    #[test]
    fn addresses_follow_each_other_through_all_ranges_and_around() {
        let set = set(vec![
            range("10.1.0.0/24", "10.1.0.1", "10.1.0.2"),
            range("10.1.0.0/24", "10.1.0.10", "10.1.0.11"),
        ]);
        let mut last = None;
        let order = iter::repeat_with(|| {
            last = next_free(&set, last, |_| false);
            last.unwrap().to_string()
        });
        let order: Vec<_> = order.take(5).collect();
        assert_eq!(
            order,
            [
                "10.1.0.2",
                "10.1.0.10",
                "10.1.0.11",
                "10.1.0.2",
                "10.1.0.10"
            ]
        );
    }

    #[test]
    fn last_address_of_all_is_no_end() {
        let set = set(vec![range(
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126",
            "",
            "",
        )]);
        let last = ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        let first = next_free(&set, Some(last), |_| false);
        assert_eq!(first, Some(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe")));
    }

    #[test]
    fn excluded_parts_are_stepped_over_however_large() {
        let mut half = range("fd00::/64", "", "");
        half.exclude = vec![
            "fd00::/65".parse().unwrap(),
            "fd00::8000:0:0:0".parse().unwrap(),
        ];
        let set = set(vec![half]);
        assert_eq!(
            next_free(&set, None, |_| false),
            Some(ip("fd00::8000:0:0:1"))
        );
        let last = Some(ip("fd00::ffff:ffff:ffff:ffff"));
        assert_eq!(
            next_free(&set, last, |_| false),
            Some(ip("fd00::8000:0:0:1"))
        );
    }

    #[test]
    fn last_address_outside_starts_at_the_beginning() {
        let set = set(vec![range("10.1.0.0/24", "10.1.0.5", "10.1.0.9")]);
        for last in [None, Some(ip("10.9.0.1")), Some(ip("fd00::1"))] {
            assert_eq!(next_free(&set, last, |_| false), Some(ip("10.1.0.5")));
        }
    }

    proptest! {
        #[test]
        fn every_address_is_found_once_before_there_is_none(
            subnet in prop::sample::select(vec!["10.1.0.0/27", "fd00::/123", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffe0/123"]),
            last in any::<Option<u8>>(),
        ) {
            let set = set(vec![range(subnet, "", "")]);
            let lowest = number(subnet.parse::<IpNetwork>().unwrap().network());
            let number_of = |offset: u8| lowest.saturating_add(u128::from(offset));
            let mut last = last.map(|offset| address(number_of(offset), subnet.parse().unwrap()));
            let mut taken = BTreeSet::new();
            while let Some(found) = next_free(&set, last, |it| taken.contains(&it)) {
                prop_assert!(set.range_of(found).is_some() && !set.is_gateway(found));
                prop_assert!(taken.insert(found));
                last = Some(found);
            }
            prop_assert_eq!(taken.len(), leasable(&set, None).count());
        }

        #[test]
        fn one_is_found_whenever_one_is_free_and_never_a_wrong_one(
            first in 1u8..60,
            length in 0u8..20,
            second in 100u8..200,
            last in any::<Option<u8>>(),
            taken in prop::collection::btree_set(any::<u8>(), 0..256),
            excluded in prop::collection::vec((any::<u8>(), 27u8..=32), 0..4),
        ) {
            let at = |byte: u8| IpAddr::from([10, 1, 0, byte]);
            let bounds = |start: u8| range("10.1.0.0/24", &at(start).to_string(), &at(start + length).to_string());
            let mut ranges = vec![bounds(first), bounds(second)];
            let excluded = excluded.into_iter().map(|(byte, length)| IpNetwork::new(at(byte), length).unwrap());
            ranges[1].exclude = excluded.collect();
            let is_excluded = {
                let excluded = ranges[1].exclude.clone();
                move |it: IpAddr| excluded.iter().any(|network| network.contains(it))
            };
            let set = set(ranges);
            let taken: BTreeSet<_> = taken.into_iter().map(at).collect();
            let free: BTreeSet<_> = (0..=255).map(at).filter(|it| {
                set.range_of(*it).is_some() && !set.is_gateway(*it) && !is_excluded(*it) && !taken.contains(it)
            }).collect();
            let found = next_free(&set, last.map(at), |it| taken.contains(&it));
            prop_assert_eq!(found.is_some(), !free.is_empty());
            prop_assert!(found.is_none_or(|it| free.contains(&it)));
        }
    }
}
