//! Writes a result in any version. Older versions drop the keys that they cannot represent.

use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use super::values::{AddResult, Dns, Interface, IpConfig, Route};
use crate::version::SpecVersion;

impl AddResult {
    /// Returns the JSON object of this result in `version`.
    pub fn to_json(&self, version: SpecVersion) -> Value {
        let mut object = match version {
            SpecVersion::V0_1_0 | SpecVersion::V0_2_0 => self.per_family(),
            _ => self.listed(version),
        };
        object.insert("cniVersion".into(), json!(version.as_str()));
        if !self.dns.is_empty() {
            object.insert("dns".into(), dns(&self.dns));
        }
        Value::Object(object)
    }

    fn listed(&self, version: SpecVersion) -> Map<String, Value> {
        let mut object = self.extra.clone();
        let mut list = |key: &str, values: Vec<Value>| {
            if !values.is_empty() {
                object.insert(key.into(), Value::Array(values));
            }
        };
        list(
            "interfaces",
            self.interfaces
                .iter()
                .map(|it| interface(it, version))
                .collect(),
        );
        list("ips", self.ips.iter().map(|it| ip(it, version)).collect());
        list("routes", self.routes.iter().map(route).collect());
        object
    }

    /// Returns the first address of each family, with the routes of that family.
    fn per_family(&self) -> Map<String, Value> {
        let mut object = self.extra.clone();
        for (key, is_family) in [
            ("ip4", IpNetwork::is_ipv4 as fn(&_) -> bool),
            ("ip6", IpNetwork::is_ipv6),
        ] {
            let Some(ip) = self.ips.iter().find(|ip| is_family(&ip.address)) else {
                continue;
            };
            let mut entry = ip.extra.clone();
            entry.insert("ip".into(), json!(ip.address));
            set(&mut entry, "gateway", ip.gateway.as_ref());
            let of_family = self.routes.iter().filter(|route| is_family(&route.dst));
            let routes: Vec<_> = of_family.map(route).collect();
            if !routes.is_empty() {
                entry.insert("routes".into(), Value::Array(routes));
            }
            object.insert(key.into(), Value::Object(entry));
        }
        object
    }
}

fn interface(interface: &Interface, version: SpecVersion) -> Value {
    let mut object = interface.extra.clone();
    object.insert("name".into(), json!(interface.name));
    set(&mut object, "mac", interface.mac.as_ref());
    set(&mut object, "sandbox", interface.sandbox.as_ref());
    if version >= SpecVersion::V1_1_0 {
        set(&mut object, "mtu", interface.mtu);
        set(&mut object, "socketPath", interface.socket_path.as_ref());
        set(&mut object, "pciID", interface.pci_id.as_ref());
    }
    Value::Object(object)
}

fn ip(ip: &IpConfig, version: SpecVersion) -> Value {
    let mut object = ip.extra.clone();
    if version < SpecVersion::V1_0_0 {
        let family = if ip.address.is_ipv4() { "4" } else { "6" };
        object.insert("version".into(), json!(family));
    }
    set(&mut object, "interface", ip.interface);
    object.insert("address".into(), json!(ip.address));
    set(&mut object, "gateway", ip.gateway.as_ref());
    Value::Object(object)
}

/// Returns a route with the attributes of 1.1.0, in every version. The reference prints them so,
/// and a chain at 0.3.1 depends on it.
fn route(route: &Route) -> Value {
    let mut object = route.extra.clone();
    object.insert("dst".into(), json!(route.dst));
    set(&mut object, "gw", route.gw.as_ref());
    set(&mut object, "mtu", route.mtu);
    set(&mut object, "advmss", route.advmss);
    set(&mut object, "priority", route.priority);
    set(&mut object, "table", route.table);
    set(&mut object, "scope", route.scope);
    Value::Object(object)
}

fn dns(dns: &Dns) -> Value {
    let mut object = dns.extra.clone();
    let mut list = |key: &str, values: &[String]| {
        if !values.is_empty() {
            object.insert(key.into(), json!(values));
        }
    };
    list("nameservers", &dns.nameservers);
    list("search", &dns.search);
    list("options", &dns.options);
    set(&mut object, "domain", dns.domain.as_ref());
    Value::Object(object)
}

fn set(object: &mut Map<String, Value>, key: &str, value: Option<impl serde::Serialize>) {
    if let Some(value) = value {
        object.insert(key.to_owned(), json!(value));
    }
}
