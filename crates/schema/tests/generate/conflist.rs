//! The schema of a list with all plugins.

use serde_json::{Value, json};

use crate::plugins::{ipam, plugins};

/// Returns the JSON Schema of a conflist.
pub fn schema() -> Value {
    let mut definitions = json!({});
    let (mut rules, mut delegates) = (Vec::new(), Vec::new());
    for (name, schema) in ipam() {
        definitions[name] = schema;
        delegates.push(when(name));
    }
    for (name, mut schema) in plugins() {
        if let Some(ipam) = schema["properties"].get_mut("ipam") {
            ipam["allOf"] = delegates.clone().into();
        }
        definitions[name] = schema;
        rules.push(when(name));
    }
    definitions["plugin"] = json!({
        "type": "object",
        "description": "A plugin, and its keys. Those of others are not judged.",
        "properties": {"type": {"type": "string"}},
        "required": ["type"],
        "allOf": rules,
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CNI network configuration list",
        "type": "object",
        "properties": list(),
        "required": ["cniVersion", "name", "plugins"],
        "$defs": definitions,
    })
}

/// Returns the keys of a list; runtimes may know more.
///
/// Source: CNI specification 1.1.0, section 1.
fn list() -> Value {
    let version = json!({"enum": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]});
    json!({
        "cniVersion": {"$ref": "#/properties/cniVersions/items", "description": "Results are in this version."},
        "cniVersions": {
            "type": "array",
            "items": version,
            "description": "All versions that the list is for; the runtime takes the newest that it knows.",
        },
        "name": {
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            "description": "The network's name, of which there is one on a host.",
        },
        "disableCheck": {"type": "boolean", "default": false, "description": "CHECK does nothing."},
        "disableGC": {"type": "boolean", "default": false, "description": "GC does nothing."},
        "plugins": {
            "type": "array",
            "items": {"$ref": "#/$defs/plugin"},
            "minItems": 1,
            "description": "In the order in which ADD calls them.",
        },
    })
}

/// Returns a rule of the schema: an object with this `type` has the keys of this plugin.
fn when(plugin: &str) -> Value {
    json!({
        "if": {"properties": {"type": {"const": plugin}}, "required": ["type"]},
        "then": {"$ref": format!("#/$defs/{plugin}")},
    })
}
