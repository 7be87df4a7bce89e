//! Which keys the plugins know, as their configuration types have it.
//!
//! `conf-examples/conflist.schema.json` and the table here are written by the test `generate`, which names the
//! modules `raw.rs` of the plugins; `SCHEMA_UPDATE=1 cargo test -p schema` writes them anew. Knows nothing of
//! values: what makes no sense is found by the plugin, or by the JSON Schema.

mod keys;

/// The keys of one plugin of a list, in their written case and with their parents, as in
/// `ipam.ranges[][].subnet`; `None` where the plugin is none of ours. Plugins match them in any case.
///
/// `bridge` has none of the keys of `ipam`, which are those of the plugin that `ipam.type` names.
pub fn known_keys(plugin: &str) -> Option<&'static [&'static str]> {
    let found = keys::KEYS.iter().find(|(name, _)| *name == plugin);
    found.map(|(_, keys)| *keys)
}
