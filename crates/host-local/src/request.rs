//! Addresses that the request names.

use std::net::IpAddr;

use cni::{AddRequest, Error};
use ipnetwork::IpNetwork;
use serde::Deserialize;

use crate::range::RangeSet;

/// Returns the addresses requested in `CNI_ARGS`, `args.cni` and `runtimeConfig`, without
/// duplicates.
///
/// # Errors
/// Code 4 or 7 with the source and the invalid text.
pub fn requested(request: &AddRequest) -> Result<Vec<IpAddr>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Section {
        ips: Vec<String>,
    }
    let args = request.args()?;
    args.expect_only(KNOWN_ARGS)?;
    let argument = args.value("IP").unwrap_or_default();
    let argument: Vec<_> = argument
        .split(',')
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect();
    let conventional = request.network.args_cni::<Section>()?.ips;
    let runtime = request.network.runtime_config::<Section>()?.ips;
    let mut addresses = Vec::new();
    let sources = [
        ("CNI_ARGS IP", argument),
        ("args.cni.ips", conventional),
        ("runtimeConfig.ips", runtime),
    ];
    for (key, texts) in sources {
        for address in listed(key, &texts)? {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}

/// Parses the addresses of one list. Two lists may name the same address, since runtimes pass it in
/// several ways. A duplicate within a list is an error.
fn listed(key: &str, texts: &[String]) -> Result<Vec<IpAddr>, Error> {
    let mut addresses = Vec::new();
    for text in texts {
        let invalid = |reason: &str| Error::invalid(key, format!("{text:?} {reason}"));
        let address = parse(text).ok_or_else(|| invalid("is no address"))?;
        if addresses.contains(&address) {
            return Err(invalid("is asked for twice"));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Assigns the requested addresses to range sets.
///
/// # Errors
/// Code 7: an address outside all sets, a gateway, or two addresses for one set.
pub fn assign(sets: &[RangeSet], requested: &[IpAddr]) -> Result<Vec<Option<IpAddr>>, Error> {
    let mut assigned = vec![None; sets.len()];
    for address in requested {
        let slots = assigned.iter_mut().zip(sets);
        let Some((slot, set)) = slots
            .into_iter()
            .find(|(_, set)| set.range_of(*address).is_some())
        else {
            let ranges: Vec<_> = sets.iter().map(ToString::to_string).collect();
            return Err(refused(
                *address,
                &format!("no range holds it; there are {}", ranges.join(", ")),
            ));
        };
        if set.is_gateway(*address) {
            return Err(refused(*address, "it is the gateway"));
        }
        if let Some(other) = slot.replace(*address) {
            let reason = format!(
                "{other} of the same range set is asked for, too, and a container gets one of each"
            );
            return Err(refused(*address, &reason));
        }
    }
    Ok(assigned)
}

fn refused(address: IpAddr, reason: &str) -> Error {
    Error::invalid("requested address", format!("{address}: {reason}"))
}

/// Parses an address; ignores a prefix length, which the range determines.
fn parse(text: &str) -> Option<IpAddr> {
    text.trim()
        .parse::<IpNetwork>()
        .ok()
        .map(|network| network.ip())
}

/// Arguments of this plugin and of others; `MAC` is for the plugin that calls this one.
const KNOWN_ARGS: &[&str] = &[
    "IP",
    "GATEWAY",
    "MAC",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
];

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
    fn asked_for_addresses_find_their_sets() {
        let sets = [set("10.1.0.0/24"), set("fd00::/64")];
        let assigned = assign(&sets, &[ip("fd00::7/64")]).unwrap();
        assert_eq!(assigned, [None, Some(ip("fd00::7"))]);
    }

    #[test]
    fn what_no_set_can_give_is_refused() {
        let sets = [set("10.1.0.0/24")];
        for asked in [
            &["10.2.0.1"][..],
            &["10.1.0.1"],
            &["10.1.0.5", "10.1.0.6"],
            &["fd00::1"],
        ] {
            let asked: Vec<_> = asked.iter().map(|text| ip(text)).collect();
            assert_eq!(assign(&sets, &asked).unwrap_err().code(), 7, "{asked:?}");
        }
    }

    #[test]
    fn list_that_makes_no_sense_is_refused_with_the_word() {
        let list = |texts: &[&str]| {
            let texts: Vec<_> = texts.iter().map(ToString::to_string).collect();
            listed("runtimeConfig.ips", &texts)
        };
        let both = list(&["10.1.0.5", "fd00::5/64"]).unwrap();
        assert_eq!(both, [ip("10.1.0.5"), ip("fd00::5")]);
        for (texts, expected) in [
            (&["10.1.0"][..], "\"10.1.0\" is no address"),
            (&[""], "\"\" is no address"),
            (
                &["10.1.0.5", "10.1.0.5/24"],
                "\"10.1.0.5/24\" is asked for twice",
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
