//! The keys that the plugins know, from their configuration types.
//!
//! The test `generate` writes `conf-examples/conflist.schema.json` and the table of this crate. It
//! reads the modules `raw.rs` of the plugins; `SCHEMA_UPDATE=1 cargo test -p schema` updates both
//! files. This crate does not know values: the plugin or the JSON Schema rejects invalid ones.

mod keys;

/// Returns the keys of a plugin in their canonical spelling and with their parents, as in
/// `ipam.ranges[][].subnet`. Returns `None` for a plugin outside this suite. Plugins match keys in
/// any case.
///
/// The keys of `bridge` do not include those of `ipam`, which belong to the plugin of `ipam.type`.
pub fn known_keys(plugin: &str) -> Option<&'static [&'static str]> {
    let found = keys::KEYS.iter().find(|(name, _)| *name == plugin);
    found.map(|(_, keys)| *keys)
}
