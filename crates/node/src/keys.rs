//! Reads the keys `bridge` (of `bridge`) and `dataDir` (of host-local) of a configuration. If a key
//! is absent, its value is the plugin's default.

use std::path::PathBuf;

use cni::json;
use runtime::{Conflist, PluginConfig};
use serde_json::Value;

/// Returns the name of the bridge that a plugin `bridge` uses; `None` for other plugins.
pub fn bridge_of(plugin: &PluginConfig) -> Option<&str> {
    let named = plugin.key("bridge").and_then(Value::as_str);
    let named = named.filter(|it| !it.is_empty());
    (plugin.program == "bridge").then(|| named.unwrap_or(bridge::DEFAULT_BRIDGE))
}

/// Returns the directories in which host-local keeps leases of the network's plugins.
pub fn lease_directories(network: &Conflist) -> Vec<PathBuf> {
    let plugins = network.all_plugins().into_iter();
    let leasing = plugins.filter(|it| it.ipam_type() == Some("host-local"));
    let directories = leasing.map(|plugin| {
        let ipam = plugin.ipam();
        let named = ipam.and_then(|it| json::value(it, "dataDir")?.as_str());
        let named = named.filter(|it| !it.is_empty());
        PathBuf::from(named.unwrap_or(host_local::DEFAULT_DATA_DIR))
    });
    directories.collect()
}
