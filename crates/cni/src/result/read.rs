//! Reads results of any version.

use ipnetwork::IpNetwork;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::values::{AddResult, Dns, Interface, IpConfig, Route};
use crate::error::Error;
use crate::json;
use crate::version::SpecVersion;

/// Reads `value`, a result in its own `cniVersion` or else in `version`.
///
/// Accepts keys of older versions in a newer result, and `null` for a list.
///
/// # Errors
/// [`Error::Decode`] with `what` and the invalid key.
pub fn read(value: Value, version: SpecVersion, what: &str) -> Result<AddResult, Error> {
    let read = || {
        let mut keys = Keys::new(value, "")?;
        let own: Option<String> = keys.take("cniVersion")?;
        let version = match own {
            Some(own) => own
                .parse()
                .map_err(|error| format!("cniVersion: {error}"))?,
            None => version,
        };
        match version {
            SpecVersion::V0_1_0 | SpecVersion::V0_2_0 => per_family(keys),
            _ => listed(keys),
        }
    };
    read().map_err(|reason| Error::Decode {
        what: what.to_owned(),
        reason,
    })
}

/// Reads a result of 0.3.0 or later.
fn listed(mut keys: Keys) -> Result<AddResult, String> {
    let mut result = AddResult {
        interfaces: keys.take_list("interfaces", interface)?,
        ips: keys.take_list("ips", ip)?,
        routes: keys.take_list("routes", route)?,
        dns: keys.take_object("dns", dns)?.unwrap_or_default(),
        extra: keys.unknown(RESULT),
    };
    // IPAM plugins send the index 0 and no interfaces; the reference ignores both.
    let count = result.interfaces.len();
    for ip in &mut result.ips {
        ip.interface = ip.interface.filter(|index| *index < count);
    }
    Ok(result)
}

/// Reads a result of 0.1.0 or 0.2.0: one object per family, each with its routes.
fn per_family(mut keys: Keys) -> Result<AddResult, String> {
    let mut result = AddResult::default();
    for family in ["ip4", "ip6"] {
        let read = keys.take_object(family, |mut keys| {
            let routes = keys.take_list("routes", route)?;
            let ip = IpConfig {
                interface: None,
                address: keys.require("ip")?,
                gateway: keys.take_parsed("gateway")?,
                extra: keys.unknown(IP),
            };
            Ok((ip, routes))
        })?;
        if let Some((ip, routes)) = read {
            result.ips.push(ip);
            result.routes.extend(routes);
        }
    }
    result.dns = keys.take_object("dns", dns)?.unwrap_or_default();
    result.extra = keys.unknown(RESULT);
    Ok(result)
}

fn interface(mut keys: Keys) -> Result<Interface, String> {
    Ok(Interface {
        name: keys.require("name")?,
        mac: keys.take_text("mac")?,
        mtu: keys.take("mtu")?,
        sandbox: keys.take_text("sandbox")?,
        socket_path: keys.take_text("socketPath")?,
        pci_id: keys.take_text("pciID")?,
        extra: keys.unknown(INTERFACE),
    })
}

fn ip(mut keys: Keys) -> Result<IpConfig, String> {
    // Redundant with the address; 1.0.0 removed it.
    keys.take::<Value>("version")?;
    let interface: Option<i64> = keys.take("interface")?;
    Ok(IpConfig {
        // The reference uses -1 for "no interface".
        interface: interface.and_then(|index| usize::try_from(index).ok()),
        address: keys.require("address")?,
        gateway: keys.take_parsed("gateway")?,
        extra: keys.unknown(IP),
    })
}

fn route(mut keys: Keys) -> Result<Route, String> {
    let dst: IpNetwork = keys.require("dst")?;
    Ok(Route {
        dst,
        gw: keys.take_parsed("gw")?,
        mtu: keys.take("mtu")?,
        advmss: keys.take("advmss")?,
        priority: keys.take("priority")?,
        table: keys.take("table")?,
        scope: keys.take("scope")?,
        extra: keys.unknown(ROUTE),
    })
}

fn dns(mut keys: Keys) -> Result<Dns, String> {
    Ok(Dns {
        nameservers: keys.take("nameservers")?.unwrap_or_default(),
        domain: keys.take_text("domain")?,
        search: keys.take("search")?.unwrap_or_default(),
        options: keys.take("options")?.unwrap_or_default(),
        extra: keys.unknown(DNS),
    })
}

/// An object from which known keys are removed; the unknown rest is passed on.
pub(super) struct Keys {
    rest: Map<String, Value>,
    at: String,
}

impl Keys {
    fn new(value: Value, at: &str) -> Result<Self, String> {
        let at = at.to_owned();
        match value {
            Value::Object(rest) => Ok(Self { rest, at }),
            other if at.is_empty() => Err(format!("expected an object, found {other}")),
            other => Err(format!("{at}: expected an object, found {other}")),
        }
    }

    /// Returns the unknown keys: those that are not in `known`, in any case or version. A known key
    /// of one version could have another meaning in a result of another version.
    fn unknown(mut self, known: &[&str]) -> Map<String, Value> {
        let is_known = |name: &str| known.iter().any(|it| it.eq_ignore_ascii_case(name));
        self.rest.retain(|name, _| !is_known(name));
        self.rest
    }

    fn path(&self, key: &str) -> String {
        match self.at.as_str() {
            "" => key.to_owned(),
            parent => format!("{parent}.{key}"),
        }
    }

    fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, String> {
        let Some(value) = json::take(&mut self.rest, key) else {
            return Ok(None);
        };
        let read = serde_json::from_value(value);
        read.map(Some)
            .map_err(|error| format!("{}: {error}", self.path(key)))
    }

    fn require<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, String> {
        self.take(key)?
            .ok_or_else(|| format!("{} is missing", self.path(key)))
    }

    /// Removes a text and returns it; an empty text counts as absent, as in the reference.
    fn take_text(&mut self, key: &str) -> Result<Option<String>, String> {
        Ok(self.take::<String>(key)?.filter(|text| !text.is_empty()))
    }

    fn take_parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        key: &str,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.take_text(key)? else {
            return Ok(None);
        };
        let parsed = text.parse();
        parsed
            .map(Some)
            .map_err(|error| format!("{}: {text:?}: {error}", self.path(key)))
    }

    fn take_object<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(Self) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let value = json::take(&mut self.rest, key);
        let object = value.map(|value| Self::new(value, &self.path(key)).and_then(read));
        object.transpose()
    }

    fn take_list<T>(
        &mut self,
        key: &str,
        read: impl Fn(Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let values: Vec<Value> = self.take(key)?.unwrap_or_default();
        let elements = values.into_iter().enumerate().map(|(index, value)| {
            let at = format!("{}[{index}]", self.path(key));
            Self::new(value, &at).and_then(&read)
        });
        elements.collect()
    }
}

const RESULT: &[&str] = &[
    "cniVersion",
    "interfaces",
    "ips",
    "routes",
    "dns",
    "ip4",
    "ip6",
];
const INTERFACE: &[&str] = &["name", "mac", "mtu", "sandbox", "socketPath", "pciID"];
const IP: &[&str] = &["version", "interface", "address", "gateway", "ip", "routes"];
const ROUTE: &[&str] = &["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];
const DNS: &[&str] = &["nameservers", "domain", "search", "options"];
