//! The keys of each plugin, from the plugins' own modules.

use std::collections::BTreeMap;

use node::plugins::{
    bandwidth, bridge, dhcp, dummy, firewall, host_device, host_local, ipvlan, macvlan, portmap,
    ptp, sbr, static_ipam, tap, tuning, vlan, vrf,
};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// The keys of every plugin.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "only the schema uses it")]
struct Common {
    /// The plugin's file name.
    r#type: String,
    /// Capabilities for which the runtime passes values in `runtimeConfig`, such as `portMappings`,
    /// `bandwidth`, `mac`, `ips`.
    capabilities: Option<BTreeMap<String, bool>>,
    /// Arguments by convention in `args.cni`, such as `ips` and `mac`.
    args: Option<Map<String, Value>>,
    /// Absolute path of a file with a line for each invocation; nothing is logged if it is absent
    /// or empty.
    #[schemars(regex(pattern = "^(/.*)?$"))]
    log_file: Option<String>,
    /// Amount of logging: failures, each invocation, or each invocation with its steps and
    /// configuration.
    log_level: Option<LogLevel>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase", extend("default" = "info"))]
#[expect(dead_code, reason = "only the schema uses it")]
enum LogLevel {
    Error,
    Info,
    Debug,
}

/// The keys of a plugin with an IPAM plugin.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "only the schema uses it")]
struct Delegating {
    /// IPAM plugin, named by its key `type`, with that plugin's keys. Without it, `bridge`,
    /// `macvlan`, `tap` and `host-device` make an interface without address, and others refuse.
    ipam: Option<Map<String, Value>>,
    /// Time limit of the IPAM plugin for one verb.
    #[schemars(extend("default" = "60s"))]
    ipam_timeout: Option<String>,
}

/// Returns the IPAM plugins and their keys of `ipam`, including `type`.
pub fn ipam() -> Vec<(&'static str, Value)> {
    let plugins = vec![
        ("dhcp", described::<dhcp::RawConfig>()),
        ("host-local", described::<host_local::RawConfig>()),
        ("static", described::<static_ipam::RawConfig>()),
    ];
    let named = plugins.into_iter().map(|(name, mut schema)| {
        schema["properties"]["type"] = json!({"const": name});
        (name, closed(schema))
    });
    named.collect()
}

/// Returns the plugins of a list and their keys, including the common ones.
pub fn plugins() -> Vec<(&'static str, Value)> {
    let dummy = requiring(&["ipam"], delegating::<dummy::RawConfig>());
    let ptp = requiring(&["ipam"], delegating::<ptp::RawConfig>());
    let vlan = requiring(&["ipam", "master"], delegating::<vlan::RawConfig>());
    let loopback = json!({"description": "Brings `lo` up."});
    let mut vrf = plugin([described::<vrf::RawConfig>()]);
    vrf["required"] = json!(["vrfname"]);
    vec![
        ("bandwidth", plugin([described::<bandwidth::RawConfig>()])),
        ("bridge", delegating::<bridge::RawConfig>()),
        ("dummy", dummy),
        ("firewall", plugin([described::<firewall::RawConfig>()])),
        ("host-device", delegating::<host_device::RawConfig>()),
        ("ipvlan", delegating::<ipvlan::RawConfig>()),
        ("loopback", plugin([loopback])),
        ("macvlan", delegating::<macvlan::RawConfig>()),
        ("portmap", plugin([described::<portmap::RawConfig>()])),
        ("ptp", ptp),
        ("sbr", plugin([described::<sbr::RawConfig>()])),
        ("tap", delegating::<tap::RawConfig>()),
        ("tuning", plugin([described::<tuning::RawConfig>()])),
        ("vlan", vlan),
        ("vrf", vrf),
    ]
}

/// Returns the keys of a plugin with an IPAM plugin.
fn delegating<T: JsonSchema>() -> Value {
    plugin([described::<T>(), described::<Delegating>()])
}

fn requiring(keys: &[&str], mut plugin: Value) -> Value {
    plugin["required"] = json!(keys);
    plugin
}

fn plugin<const N: usize>(own: [Value; N]) -> Value {
    let mut whole = json!({"type": "object", "description": own[0]["description"]});
    for part in own.into_iter().chain([described::<Common>()]) {
        for (key, schema) in part["properties"].as_object().into_iter().flatten() {
            whole["properties"][key] = schema.clone();
        }
    }
    closed(whole)
}

/// Forbids unlisted keys.
fn closed(mut schema: Value) -> Value {
    schema["additionalProperties"] = false.into();
    schema
}

/// Returns a schema in the form that people write: absent keys instead of nulls, no names of Rust
/// types.
fn described<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(plain).transform(&mut schema);
    for key in ["$schema", "title"] {
        schema.remove(key);
    }
    schema.to_value()
}

fn plain(schema: &mut Schema) {
    for key in ["title", "format"] {
        schema.remove(key);
    }
    let is_empty = |value: &Value| {
        *value == Value::Null || *value == "" || *value == json!([]) || value.is_object()
    };
    if schema.get("default").is_some_and(is_empty) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|it| it != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            schema.insert("type".into(), one);
        }
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|it| !it.is_null());
    }
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".into(), false.into());
    }
}
