//! The plugins of the suite, and the keys that each of them knows.
//!
//! `crates/plugins.txt` lists the plugins. `conf-examples/conflist.schema.json` contains their
//! keys. The test `generate` compares that file with the type `RawConfig` of each plugin, or writes
//! the file if `SCHEMA_UPDATE` is set. This crate does not know which values are valid.

use serde_json::{Map, Value};

/// A plugin of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// CNI `type`, which is the name of the executable.
    pub name: &'static str,
    /// Role of the plugin in a configuration.
    pub role: Role,
}

/// Role of a plugin in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first plugin of a chain: it creates an interface.
    Interface,
    /// The plugin that `ipam.type` names: it leases addresses.
    Ipam,
    /// A later plugin of a chain: it changes what the interface plugin created.
    Chained,
}

/// Returns the plugins of the suite.
pub fn plugins() -> impl Iterator<Item = Plugin> {
    cni::suite().filter_map(|(name, role)| {
        let role = match role {
            "interface" => Role::Interface,
            "ipam" => Role::Ipam,
            "chained" => Role::Chained,
            _ => return None,
        };
        Some(Plugin { name, role })
    })
}

/// Returns the names of the reference's plugins that the suite does not have.
pub fn missing_plugins() -> impl Iterator<Item = &'static str> {
    let names = REFERENCE.lines().filter(|it| !it.starts_with('#'));
    names.filter(|name| plugins().all(|it| it.name != *name))
}

/// Returns the keys of a plugin in their exact spelling, each with its JSON Schema; `None` if the
/// plugin is not part of the suite. Plugins accept the keys in any case.
pub fn known_keys(plugin: &str) -> Option<Map<String, Value>> {
    let Plugin { name, .. } = plugins().find(|it| it.name == plugin)?;
    let schema: Value = serde_json::from_str(SCHEMA).ok()?;
    let keys = schema.pointer(&format!("/$defs/{name}/properties"));
    keys.and_then(Value::as_object).cloned()
}

const REFERENCE: &str = include_str!("../../reference-plugins.txt");

const SCHEMA: &str = include_str!("../../../conf-examples/conflist.schema.json");
