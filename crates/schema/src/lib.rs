//! The plugins of the suite, and the keys that each of them knows.
//!
//! `crates/plugins.txt` lists the plugins. `conf-examples/conflist.schema.json` contains their
//! keys. The test `generate` compares that file with the type `RawConfig` of each plugin, or writes
//! the file if `SCHEMA_UPDATE` is set. This crate does not know which values are valid.

use serde_json::{Map, Value};

/// Returns the names of the plugins of the suite, which are their CNI `type`s.
pub fn plugins() -> impl Iterator<Item = &'static str> {
    cni::suite().map(|(name, _)| name)
}

/// Returns the keys of a plugin in their exact spelling, each with its JSON Schema; `None` if the
/// plugin is not part of the suite. Plugins accept the keys in any case.
pub fn known_keys(plugin: &str) -> Option<Map<String, Value>> {
    let name = plugins().find(|it| *it == plugin)?;
    let schema: Value = serde_json::from_str(SCHEMA).ok()?;
    let keys = schema.pointer(&format!("/$defs/{name}/properties"));
    keys.and_then(Value::as_object).cloned()
}

const SCHEMA: &str = include_str!("../../../conf-examples/conflist.schema.json");
