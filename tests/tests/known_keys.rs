//! The executables know exactly the keys of the JSON Schema.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::dhcp::{Daemon, SOCKET};
use tests::{Host, PLUGINS};

/// Returns the keys of a plugin in the schema.
fn keys(plugin: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf-examples/conflist.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let keys = schema["$defs"][plugin]["properties"].as_object();
    keys.unwrap().keys().cloned().collect()
}

/// Returns the keys that STATUS reports as unknown. Keys with the value `null` exist without a
/// value.
fn unknown(host: &Host, plugin: &str, keys: impl Iterator<Item = String>) -> BTreeSet<String> {
    let mut section = json!({});
    for key in keys.filter(|key| key != "type") {
        section[key] = Value::Null;
    }
    let has = |key: &str| self::keys(plugin).iter().any(|it| it == key);
    if has("ipam") {
        section["ipam"] =
            json!({"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": host.lease_dir()});
    }
    if has("master") {
        section["master"] = "lo".into();
    }
    if has("vrfname") {
        section["vrfname"] = "blue".into();
    }
    let mut config = match plugin {
        "host-local" => {
            section["subnet"] = "10.1.0.0/24".into();
            section["dataDir"] = host.lease_dir().to_str().into();
            json!({"ipam": section})
        }
        "dhcp" => {
            section["daemonSocketPath"] = SOCKET.into();
            json!({"ipam": section})
        }
        "static" => json!({"ipam": section}),
        _ => section,
    };
    config["name"] = "pods".into();
    config["cniVersion"] = "1.1.0".into();
    let outcome = host.plugin(plugin).verb("STATUS").config(&config).run();
    assert!(outcome.status.success(), "{outcome:?}");
    let mut lines = outcome.stderr.lines();
    let told = lines.find_map(|it| it.split_once("unknown keys ignored: "));
    let told = told.map_or("", |(_, keys)| keys).split(", ");
    let told = told.filter(|key| !key.is_empty());
    told.map(|key| key.trim_start_matches("ipam.").to_owned())
        .collect()
}

#[test]
fn every_key_of_the_schema_is_known_and_a_misspelt_one_is_reported() {
    let host = Host::new();
    // STATUS of dhcp asks it.
    let _daemon = Daemon::start(&host);
    for plugin in PLUGINS.iter().copied() {
        let known = keys(plugin);
        let told = unknown(&host, plugin, known.iter().cloned());
        assert!(told.is_empty(), "{plugin}: {told:?}");
        let misspelt = known.iter().filter(|key| *key != "type");
        let misspelt: BTreeSet<_> = misspelt.map(|key| format!("{key}x")).collect();
        let told = unknown(&host, plugin, misspelt.iter().cloned());
        assert_eq!(told, misspelt, "{plugin}");
    }
}
