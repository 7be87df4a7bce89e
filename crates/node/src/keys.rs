//! Reads the name of the bridge and the directories of leases from a configuration. If a key is
//! absent, its value is the plugin's default.

use std::path::PathBuf;

use cni::json;
use facts::{Addresses, HostSide};
use runtime::{Conflist, PluginConfig};

use super::lookup::{facts, ipam};

/// Returns the name of the bridge whose ports the plugin makes; `None` for other plugins.
pub fn bridge_of(plugin: &PluginConfig) -> Option<&str> {
    match facts(&plugin.program).host_side {
        HostSide::Port(bridge) => Some(bridge(&plugin.config)),
        HostSide::Routed | HostSide::None => None,
    }
}

/// Returns whether the node has a route to each pod of the plugin through the host end of that
/// pod's veth pair.
pub fn is_routed(plugin: &PluginConfig) -> bool {
    matches!(facts(&plugin.program).host_side, HostSide::Routed)
}

/// Returns the keys of the plugin's `ipam` section if they are those of ranges.
pub(super) fn ranges_of(plugin: &PluginConfig) -> Option<&facts::Keys> {
    let (facts, keys) = ipam(plugin)?;
    matches!(facts.addresses, Addresses::Ranges).then_some(keys)
}

/// Returns the directories in which host-local keeps leases of the network's plugins.
pub fn lease_directories(network: &Conflist) -> Vec<PathBuf> {
    let plugins = network.all_plugins();
    let directories = plugins.iter().filter_map(ranges_of).map(|keys| {
        let named = json::value(keys, "dataDir").and_then(|it| it.as_str());
        let named = named.filter(|it| !it.is_empty());
        PathBuf::from(named.unwrap_or(host_local::DEFAULT_DATA_DIR))
    });
    directories.collect()
}
