//! The plugins of the suite, and the keys that each of them knows.
//!
//! `crates/plugins.txt` lists the plugins. `conf-examples/conflist.schema.json` has their keys: the test
//! `generate` writes it from the type `RawConfig` of each plugin if `SCHEMA_UPDATE` is set, and compares it
//! otherwise. This crate does not know which values are valid.

use serde_json::Value;

/// A plugin of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// CNI `type`, which is the name of the executable.
    pub name: &'static str,
    /// Place of the plugin in a configuration.
    pub role: Role,
}

/// Place of a plugin in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first of a chain: it makes an interface.
    Interface,
    /// The `type` of `ipam`: it leases addresses.
    Ipam,
    /// A later one of a chain: it changes what an interface plugin made.
    Chained,
}

/// Returns the plugins of the suite.
pub fn plugins() -> impl Iterator<Item = Plugin> {
    PLUGINS.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, role) = (words.next()?, words.next()?);
        let role = match role {
            "interface" => Role::Interface,
            "ipam" => Role::Ipam,
            "chained" => Role::Chained,
            _ => return None,
        };
        Some(Plugin { name, role })
    })
}

/// Returns a plugin's keys as written, with their parents, as in `ipam.ranges[][].subnet`; `None` if the
/// plugin is not of the suite. Plugins match keys in any case.
///
/// An interface plugin has none of the keys of `ipam`: they belong to the plugin that `ipam.type` names.
pub fn known_keys(plugin: &str) -> Option<Vec<String>> {
    let Plugin { name, role } = plugins().find(|it| it.name == plugin)?;
    let schema: Value = serde_json::from_str(SCHEMA).ok()?;
    let own = keys_of(&schema, name);
    Some(match role {
        Role::Interface | Role::Chained => own,
        Role::Ipam => {
            let own = own.into_iter().map(|key| format!("ipam.{key}"));
            common_keys(&schema).into_iter().chain(own).collect()
        }
    })
}

/// Keys that all plugins of a list know.
fn common_keys(schema: &Value) -> Vec<String> {
    let mut listed = plugins().filter(|it| it.role != Role::Ipam);
    let first = listed.next().map(|it| keys_of(schema, it.name));
    let mut common = first.unwrap_or_default();
    for plugin in listed {
        let other = keys_of(schema, plugin.name);
        common.retain(|key| other.contains(key));
    }
    common
}

/// Returns the keys of a plugin's own definition.
fn keys_of(schema: &Value, plugin: &str) -> Vec<String> {
    let definition = schema.pointer(&format!("/$defs/{plugin}"));
    definition.map(keys).unwrap_or_default()
}

/// Returns the keys of an object's schema and of its nested objects, with their parents.
fn keys(schema: &Value) -> Vec<String> {
    let mut all = Vec::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, schema) in properties.into_iter().flatten() {
        let (mut inner, mut below) = (schema, key.clone());
        while let Some(items) = inner.get("items") {
            inner = items;
            below.push_str("[]");
        }
        all.push(key.clone());
        all.extend(keys(inner).iter().map(|key| format!("{below}.{key}")));
    }
    all
}

const PLUGINS: &str = include_str!("../../plugins.txt");

const SCHEMA: &str = include_str!("../../../conf-examples/conflist.schema.json");
