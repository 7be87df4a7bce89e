//! Compares the JSON Schema of configuration lists with its file, or writes the file.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test panics where it fails"
)]

mod conflist;
mod plugins;

use std::fs;
use std::path::{Path, PathBuf};

use cni::Role;
use serde_json::{Value, json};

/// A path from the top of the source tree.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

/// Checks that the file contains `text`, or writes it if `SCHEMA_UPDATE` is set.
#[track_caller]
fn expect_written(name: &str, text: &str) {
    let path = path(name);
    if std::env::var_os("SCHEMA_UPDATE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(
        written == text,
        "{name} is not what the configuration types say; to write it again: SCHEMA_UPDATE=1 cargo test -p schema"
    );
}

#[test]
fn the_schema_is_what_the_configuration_types_say() {
    let text = serde_json::to_string_pretty(&conflist::schema()).unwrap();
    expect_written("conf-examples/conflist.schema.json", &format!("{text}\n"));
}

#[test]
fn a_plugin_knows_its_own_keys() {
    for (plugin, key) in [("host-local", "ranges"), ("bridge", "vlanTrunk")] {
        let keys = schema::known_keys(plugin).unwrap();
        assert!(keys.contains_key(key), "{plugin}: {keys:?}");
    }
    assert_eq!(schema::known_keys("calico"), None);
}

/// Returns whether a list with only this plugin is valid.
fn is_valid(plugin: &Value) -> bool {
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]});
    jsonschema::is_valid(&conflist::schema(), &list)
}

#[test]
fn every_example_is_valid() {
    let schema = jsonschema::validator_for(&conflist::schema()).unwrap();
    let files = fs::read_dir(path("conf-examples")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let lists = files.filter(|file| file.extension().is_some_and(|it| it == "conflist"));
    let mut count = 0;
    for file in lists {
        let list = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        if let Err(error) = schema.validate(&list) {
            panic!("{}: {error}", file.display());
        }
        count += 1;
    }
    assert!(count > 3);
}

#[test]
fn a_plugin_without_its_optional_keys_is_valid() {
    let listed = cni::suite().filter(|it| !matches!(it.1, Role::Ipam { .. }));
    let needing = ["ptp", "vlan", "dummy", "vrf"];
    for name in listed.map(|it| it.0) {
        let is_enough = is_valid(&json!({"type": name}));
        assert_eq!(is_enough, !needing.contains(&name), "{name}");
    }
    let ipam = json!({"type": "host-local"});
    assert!(is_valid(&json!({"type": "ptp", "ipam": ipam})));
}

#[test]
fn wrong_types_misspelt_keys_and_words_that_are_none_are_not_valid() {
    for (name, key, value) in [
        ("bridge", "mtu", json!("1500")),
        ("bridge", "mtu", json!(67)),
        ("bridge", "isGatway", json!(true)),
        ("bridge", "bridge", json!("sixteen-letters.")),
        ("bridge", "ipMasqBackend", json!("nft")),
        ("bridge", "vlan", json!(4095)),
        ("bridge", "vlanTrunk", json!([{"minId": 1}])),
        ("bridge", "logLevel", json!("loud")),
        ("bridge", "logFile", json!("cni.log")),
        ("bridge", "capabilities", json!({"mac": "yes"})),
        ("bridge", "runtimeConfig", json!({})),
        ("portmap", "snat", json!(1)),
        ("portmap", "conditionsV6", json!("ip6 daddr ::1")),
        ("portmap", "bridge", json!("cni0")),
        ("portmap", "backend", json!("ipvs")),
        ("bandwidth", "ingressRate", json!(7)),
        ("bandwidth", "ingressrate", json!(1000)),
        ("bandwidth", "egressBurst", json!("1M")),
        ("loopback", "mtu", json!(1500)),
        ("ptp", "mtu", json!(67)),
        ("ptp", "bridge", json!("cni0")),
        ("ptp", "ipMasqBackend", json!("nft")),
        ("sbr", "table", json!(0)),
        ("sbr", "gateways", json!("10.1.0.1")),
        ("sbr", "gateway", json!(["10.1.0.1"])),
        ("tuning", "sysctl", json!({"net.core.somaxconn": 500})),
        ("tuning", "promisc", json!("on")),
        ("tuning", "txQlen", json!(500)),
        ("tuning", "dataDir", json!("tuning")),
    ] {
        let plugin = json!({"type": name, key: value});
        assert!(!is_valid(&plugin), "{plugin}");
    }
}

#[test]
fn wrong_keys_of_an_ipam_plugin_are_not_valid() {
    for (name, key, value) in [
        ("host-local", "range", json!([])),
        ("host-local", "ranges", json!([{"subnet": "10.1.0.0/24"}])),
        ("host-local", "ranges", json!([[{"gateway": "10.1.0.9"}]])),
        ("host-local", "dataDir", json!("leases")),
        ("host-local", "addresses", json!([])),
        ("dhcp", "daemonSocketPath", json!("dhcp.sock")),
        ("dhcp", "request", json!(["121"])),
        ("static", "address", json!([])),
        ("static", "addresses", json!([{"gateway": "10.1.0.1"}])),
        ("static", "addresses", json!(["10.1.0.2/24"])),
        ("static", "routes", json!([{"gw": "10.1.0.1"}])),
    ] {
        for caller in ["bridge", "ptp"] {
            let plugin = json!({"type": caller, "ipam": {"type": name, key: value}});
            assert!(!is_valid(&plugin), "{plugin}");
        }
    }
}

#[test]
fn what_is_no_plugin_of_ours_is_not_judged() {
    assert!(is_valid(&json!({"type": "calico", "mtu": 1500})));
    let foreign = json!({"type": "whereabouts", "range": "10.1.0.0/24"});
    assert!(is_valid(&json!({"type": "bridge", "ipam": foreign})));
    assert!(!is_valid(&json!({"sysctl": {}})), "but it has a type");
    let no_list = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge"});
    assert!(!jsonschema::is_valid(&conflist::schema(), &no_list));
}
