//! Keys and arguments that several plugins parse in the same way.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnetwork::IpNetwork;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::result::{Dns, Route};
use crate::{Error, SpecVersion, json};

/// A route, with the attributes of specification 1.1.0.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct RawRoute {
    /// Destination CIDR.
    pub dst: String,
    /// Next hop; the network's gateway if it is absent.
    #[serde(default)]
    pub gw: String,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Advertised TCP segment size (MSS) in bytes.
    pub advmss: Option<u32>,
    /// Metric.
    pub priority: Option<u32>,
    /// Number of the routing table.
    pub table: Option<u32>,
    /// Scope: 0 global, 253 link, 254 host.
    pub scope: Option<u8>,
}

/// Name resolution.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RawDns {
    /// Addresses of name servers.
    pub nameservers: Option<Vec<String>>,
    /// The domain that short names are looked up in.
    pub domain: Option<String>,
    /// Domains that short names are looked up in.
    pub search: Option<Vec<String>>,
    /// Options of resolv.conf(5).
    pub options: Option<Vec<String>>,
}

/// Parses `raw`, the routes under the key `ipam.routes` of an IPAM plugin.
///
/// # Errors
/// Code 7 with the key of the invalid value.
pub fn routes(raw: &[RawRoute]) -> Result<Vec<Route>, Error> {
    Ok(json::read(&json!(raw), "ipam.routes")?.value)
}

/// Parses the address `text`, the value of `key`. Returns `None` for an empty text.
///
/// # Errors
/// Code 7 with the key: the text is not an address.
pub fn address(text: &str, key: &str) -> Result<Option<IpAddr>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    parsed(text, key).map(Some)
}

/// Parses `text`, the value of `key`.
///
/// # Errors
/// Code 7 with the key, the text and the reason.
pub fn parsed<T: FromStr<Err: Display>>(text: &str, key: &str) -> Result<T, Error> {
    let invalid = |error| Error::invalid(key, format!("{text:?}: {error}"));
    text.parse().map_err(invalid)
}

/// Returns the path `text`, the value of `key`, or `default` if the text is empty.
///
/// # Errors
/// Code 7 with the key: the path is not absolute.
pub fn absolute(text: &str, default: &str, key: &str) -> Result<PathBuf, Error> {
    let path = if text.is_empty() { default } else { text };
    if path.starts_with('/') {
        return Ok(path.into());
    }
    let reason = format!("{path:?} is not an absolute path");
    Err(Error::invalid(key, reason))
}

/// Returns the duration `text`, the value of `key`, such as `5m`; `default` if the text is empty.
///
/// # Errors
/// Code 7 with the key: the text is not a duration.
pub fn duration(text: &str, default: Duration, key: &str) -> Result<Duration, Error> {
    if text.is_empty() {
        return Ok(default);
    }
    parsed::<humantime::Duration>(text, key).map(Into::into)
}

/// Returns an error if `version` is before 0.3.0 and two of `networks` are of the same IP family. A
/// result of such a version can have only one address of each family. `what` names the networks in
/// the error.
///
/// # Errors
/// Code 7 with `key`.
pub fn expect_one_a_family(
    version: SpecVersion,
    networks: &[IpNetwork],
    key: &str,
    what: &str,
) -> Result<(), Error> {
    let ipv4 = networks.iter().filter(|it| it.is_ipv4()).count();
    if version < SpecVersion::V0_3_0 && (ipv4 > 1 || networks.len() - ipv4 > 1) {
        let reason =
            format!("several {what} of one family need cniVersion 0.3.0 or later, not {version}");
        return Err(Error::invalid(key, reason));
    }
    Ok(())
}

/// Parses the section `dns`. Returns `None` if `raw` has no key. An empty list counts as a key, an
/// empty `domain` does not.
pub fn dns(raw: RawDns) -> Option<Dns> {
    let domain = raw.domain.filter(|domain| !domain.is_empty());
    let lists = [&raw.nameservers, &raw.search, &raw.options];
    let is_asked = domain.is_some() || lists.iter().any(|list| list.is_some());
    is_asked.then(|| Dns {
        nameservers: raw.nameservers.unwrap_or_default(),
        domain,
        search: raw.search.unwrap_or_default(),
        options: raw.options.unwrap_or_default(),
        ..Dns::default()
    })
}

/// Keys that plugins accept in `CNI_ARGS`: the keys of all plugins of this suite, because all
/// plugins of a chain get the same variable, and the keys with which a runtime names the pod.
pub const KNOWN_ARGS: &[&str] = &[
    "MAC",
    "IP",
    "GATEWAY",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_results_hold_one_address_of_each_family() {
        let networks = ["10.1.0.0/24", "10.2.0.0/24", "fd00::/64"].map(|it| it.parse().unwrap());
        let expect = |version, networks: &[IpNetwork]| {
            expect_one_a_family(version, networks, "ipam.ranges", "range sets")
        };
        let error = expect(SpecVersion::V0_2_0, &networks).unwrap_err();
        assert_eq!(error.code(), 7);
        expect(SpecVersion::V0_3_0, &networks).unwrap();
        expect(SpecVersion::V0_2_0, &networks[1..]).unwrap();
    }
}
