//! Reads results of any version.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::spelling::{cidr, text};
use super::values::{AddResult, Dns, Interface, IpConfig, Route, SINCE_1_1_0};
use crate::{Error, SpecVersion, json};

/// Reads a result from `value`. The key `cniVersion` of the result determines its version. If this
/// key is missing or empty, the version is `version`.
///
/// Ignores `ip4` and `ip6` in a result of 0.3.0 or later, and `interfaces`, `ips` and `routes` in
/// an older result. A list may be `null`.
///
/// # Errors
/// [`Error::Decode`] with `what` and the invalid key.
pub fn read(value: Value, version: SpecVersion, what: &str) -> Result<AddResult, Error> {
    let read = match value {
        Value::Object(keys) => any_version(keys, version).map_err(|error| error.to_string()),
        other => Err(format!("expected an object, found {other}")),
    };
    read.map_err(|reason| Error::Decode {
        what: what.to_owned(),
        reason,
    })
}

fn any_version(mut keys: Map<String, Value>, version: SpecVersion) -> Result<AddResult, Error> {
    let own = match json::take(&mut keys, "cniVersion") {
        None => String::new(),
        Some(own) => json::read(&own, "cniVersion")?.value,
    };
    let version = match own.parse() {
        _ if own.is_empty() => version,
        Ok(own) => own,
        Err(error) => return Err(Error::invalid("cniVersion", format!("{error}"))),
    };
    let keys = Value::Object(keys);
    let mut result = match version {
        SpecVersion::V0_1_0 | SpecVersion::V0_2_0 => {
            json::read::<PerFamily>(&keys, "")?.value.into()
        }
        _ => json::read::<AddResult>(&keys, "")?.value,
    };
    drop_known(&mut result.extra, RESULT);
    if version < SpecVersion::V1_1_0 {
        result.interfaces.iter_mut().for_each(pass_on);
    }
    // IPAM plugins send addresses with the interface index 0, but no interfaces. An index without
    // an interface is dropped.
    let count = result.interfaces.len();
    for ip in &mut result.ips {
        drop_known(&mut ip.extra, IP);
        ip.interface = ip.interface.filter(|index| *index < count);
    }
    Ok(result)
}

/// A result of 0.1.0 or 0.2.0: one object per family, each with its routes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PerFamily {
    ip4: Option<Family>,
    ip6: Option<Family>,
    dns: Dns,
    #[serde(rename = "*")]
    extra: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Family {
    #[serde(deserialize_with = "cidr")]
    ip: IpNetwork,
    #[serde(default, deserialize_with = "text")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(rename = "*")]
    extra: Map<String, Value>,
}

impl From<PerFamily> for AddResult {
    fn from(old: PerFamily) -> Self {
        let mut result = Self {
            dns: old.dns,
            extra: old.extra,
            ..Self::default()
        };
        for family in [old.ip4, old.ip6].into_iter().flatten() {
            result.routes.extend(family.routes);
            result.ips.push(IpConfig {
                interface: None,
                address: family.ip,
                gateway: family.gateway,
                extra: family.extra,
            });
        }
        result
    }
}

/// Copies the keys that only 1.1.0 knows to the unknown keys of `interface`, which are passed on.
fn pass_on(interface: &mut Interface) {
    if let Value::Object(mut keys) = json!(interface) {
        keys.retain(|key, value| SINCE_1_1_0.contains(&key.as_str()) && json::is_set(value));
        interface.extra.extend(keys);
    }
}

/// Removes the keys `known` from `extra`, the unknown keys of a result. A key that is unknown in
/// the version of the result may have a meaning in another version. So `extra` must not carry it
/// into a result that is written in that version.
fn drop_known(extra: &mut Map<String, Value>, known: &[&str]) {
    extra.retain(|name, _| !known.iter().any(|it| it.eq_ignore_ascii_case(name)));
}

const RESULT: &[&str] = &["cniVersion", "interfaces", "ips", "routes", "ip4", "ip6"];
const IP: &[&str] = &["version", "interface", "address", "ip", "routes"];
