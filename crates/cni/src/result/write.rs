//! Writes a result in any version. Leaves out what an older version cannot represent.

use ipnetwork::IpNetwork;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::values::{AddResult, Interface, IpConfig, Route, SINCE_1_1_0};
use crate::{SpecVersion, json};

impl AddResult {
    /// Returns the JSON object of this result in `version`.
    pub fn to_json(&self, version: SpecVersion) -> Value {
        let addresses = match version {
            SpecVersion::V0_1_0 | SpecVersion::V0_2_0 => json!({
                "ip4": self.family(IpNetwork::is_ipv4),
                "ip6": self.family(IpNetwork::is_ipv6),
            }),
            _ => json!({
                "interfaces": list(&self.interfaces, |it| interface(it, version)),
                "ips": list(&self.ips, |it| ip(it, version)),
                "routes": list(&self.routes, route),
            }),
        };
        let mut object = with_extra(&addresses, &self.extra);
        object.insert("cniVersion".into(), json!(version.as_str()));
        if !self.dns.is_empty() {
            let dns = with_extra(&self.dns, &self.dns.extra);
            object.insert("dns".into(), dns.into());
        }
        object.into()
    }

    /// Returns the object of one IP family for versions before 0.3.0: the first address of the
    /// family, and the routes of the family. Returns `None` if there is no such address.
    fn family(&self, is_family: impl Fn(&IpNetwork) -> bool) -> Option<Value> {
        let ip = self.ips.iter().find(|ip| is_family(&ip.address))?;
        let routes = self.routes.iter().filter(|route| is_family(&route.dst));
        let object = json!({
            "ip": ip.address,
            "gateway": ip.gateway,
            "routes": list(routes, route),
        });
        Some(with_extra(&object, &ip.extra).into())
    }
}

fn interface(interface: &Interface, version: SpecVersion) -> Value {
    let mut object = with_extra(interface, &interface.extra);
    if version < SpecVersion::V1_1_0 {
        // The Go plugins, too, pass these keys of prevResult on.
        let is_own = |key: &str| SINCE_1_1_0.contains(&key) && !interface.extra.contains_key(key);
        object.retain(|key, _| !is_own(key));
    }
    object.into()
}

fn ip(ip: &IpConfig, version: SpecVersion) -> Value {
    let mut object = with_extra(ip, &ip.extra);
    if version < SpecVersion::V1_0_0 {
        let family = if ip.address.is_ipv4() { "4" } else { "6" };
        object.insert("version".into(), json!(family));
    }
    object.into()
}

/// Returns the JSON object of a route. It contains the attributes of version 1.1.0 even in results
/// of older versions. The Go plugins do so, too, and the next plugins of a chain use the
/// attributes.
fn route(route: &Route) -> Value {
    with_extra(route, &route.extra).into()
}

fn list<'a, T: 'a>(
    values: impl IntoIterator<Item = &'a T>,
    write: impl Fn(&T) -> Value,
) -> Vec<Value> {
    values.into_iter().map(write).collect()
}

/// Returns an object with the keys of `own` whose values are neither `null` nor empty lists, and
/// with the unknown keys in `extra`.
fn with_extra(own: &impl Serialize, extra: &Map<String, Value>) -> Map<String, Value> {
    let mut object = extra.clone();
    if let Value::Object(own) = json!(own) {
        object.extend(own.into_iter().filter(|(_, value)| json::is_set(value)));
    }
    object
}
