//! Finds the addresses that the runtime or the operator requests.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::keys::KNOWN_ARGS;
use cni::{AddRequest, Error};
use ipnetwork::IpNetwork;

use crate::range::RangeSet;

/// The address that a container shall get from one range set.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Position of the set among all range sets, from 0.
    pub number: usize,
    /// The range set.
    pub set: &'a RangeSet,
    /// The requested address. Without one, the container gets the next free address.
    pub address: Option<IpAddr>,
}

/// Returns a [`Wanted`] for each of `sets`. It contains the requested address in this set, if any.
///
/// # Errors
/// - Code 4: `CNI_ARGS` has the wrong form or an unknown key.
/// - Code 7: a requested address is invalid, or occurs twice in one list.
/// - Code 7: a requested address is in no set or is a gateway, or two requested addresses are in
///   one set.
pub fn wanted<'a>(request: &AddRequest, sets: &'a [RangeSet]) -> Result<Vec<Wanted<'a>>, Error> {
    assign(sets, &requested(request)?)
}

/// Returns the addresses requested in `CNI_ARGS`, `args.cni` and `runtimeConfig`. A runtime may
/// pass the same address in several of them, so duplicates are merged.
fn requested(request: &AddRequest) -> Result<BTreeSet<IpAddr>, Error> {
    let args = request.args()?;
    args.expect_only(KNOWN_ARGS)?;
    let words = args.value("IP").unwrap_or_default().split(',');
    let argument = words.filter(|it| !it.is_empty()).map(str::to_owned);
    let mut addresses = listed("CNI_ARGS IP", &argument.collect::<Vec<_>>())?;
    for (key, texts) in request.network.asked_ips()? {
        addresses.extend(listed(key, &texts)?);
    }
    Ok(addresses)
}

/// Parses the list of addresses under `key`. A duplicate within the list is an error.
fn listed(key: &str, texts: &[String]) -> Result<BTreeSet<IpAddr>, Error> {
    let mut addresses = BTreeSet::new();
    for text in texts {
        let invalid = |reason: &str| Error::invalid(key, format!("{text:?} {reason}"));
        let address = parse(text).ok_or_else(|| invalid("is not an address"))?;
        if !addresses.insert(address) {
            return Err(invalid("is requested twice"));
        }
    }
    Ok(addresses)
}

/// Assigns each requested address to the set that contains it. Returns a [`Wanted`] for each set.
fn assign<'a>(
    sets: &'a [RangeSet],
    requested: &BTreeSet<IpAddr>,
) -> Result<Vec<Wanted<'a>>, Error> {
    let any = sets.iter().enumerate().map(|(number, set)| Wanted {
        number,
        set,
        address: None,
    });
    let mut wanted: Vec<_> = any.collect();
    for address in requested {
        let refused =
            |reason: &str| Error::invalid("requested address", format!("{address}: {reason}"));
        let holds = |it: &&mut Wanted<'_>| it.set.range_of(*address).is_some();
        let Some(slot) = wanted.iter_mut().find(holds) else {
            let ranges: Vec<_> = sets.iter().map(ToString::to_string).collect();
            let reason = format!("it is in no range of this network: {}", ranges.join(", "));
            return Err(refused(&reason));
        };
        if slot.set.is_gateway(*address) {
            return Err(refused("it is the gateway"));
        }
        if let Some(other) = slot.address.replace(*address) {
            let reason = format!(
                "{other} is requested, too, but a container gets one address of each range set"
            );
            return Err(refused(&reason));
        }
    }
    Ok(wanted)
}

/// Parses an address; returns `None` if `text` is invalid. Ignores a prefix length, because the
/// range determines it.
fn parse(text: &str) -> Option<IpAddr> {
    let parsed = text.trim().parse::<IpNetwork>();
    parsed.ok().map(|network| network.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::Range;
    use crate::raw::RawRange;

    fn set(subnet: &str) -> RangeSet {
        let raw = RawRange {
            subnet: subnet.into(),
            ..RawRange::default()
        };
        RangeSet::new(vec![Range::parse(&raw, "").unwrap()], "").unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        parse(text).unwrap()
    }

    #[test]
    fn requested_addresses_find_their_sets() {
        let sets = [set("10.1.0.0/24"), set("fd00::/64")];
        let wanted = assign(&sets, &[ip("fd00::7/64")].into()).unwrap();
        let addresses: Vec<_> = wanted.iter().map(|it| it.address).collect();
        assert_eq!(addresses, [None, Some(ip("fd00::7"))]);
    }

    #[test]
    fn address_outside_all_sets_or_second_of_one_set_is_refused() {
        let sets = [set("10.1.0.0/24")];
        for asked in [
            &["10.2.0.1"][..],
            &["10.1.0.1"],
            &["10.1.0.5", "10.1.0.6"],
            &["fd00::1"],
        ] {
            let requested = asked.iter().map(|text| ip(text)).collect();
            let error = assign(&sets, &requested).unwrap_err();
            assert_eq!(error.code(), 7, "{asked:?}");
        }
    }

    #[test]
    fn invalid_list_is_refused_with_the_word() {
        let list = |texts: &[&str]| {
            let texts: Vec<_> = texts.iter().map(ToString::to_string).collect();
            listed("runtimeConfig.ips", &texts)
        };
        let both = list(&["10.1.0.5", "fd00::5/64"]).unwrap();
        assert_eq!(both, [ip("10.1.0.5"), ip("fd00::5")].into());
        for (texts, expected) in [
            (&["10.1.0"][..], "\"10.1.0\" is not an address"),
            (&[""], "\"\" is not an address"),
            (
                &["10.1.0.5", "10.1.0.5/24"],
                "\"10.1.0.5/24\" is requested twice",
            ),
        ] {
            let error = list(texts).unwrap_err();
            assert_eq!(error.code(), 7);
            assert_eq!(error.to_string(), format!("runtimeConfig.ips: {expected}"));
        }
    }

    #[test]
    fn prefix_is_optional() {
        assert_eq!(parse("10.1.0.5/16"), parse("10.1.0.5"));
        assert_eq!(parse("10.1.0"), None);
    }
}
