//! Finds the facts about plugins of a configuration, and about tables. If a key is absent from the
//! configuration, its value is the plugin's default.

use std::path::PathBuf;

use cni::json;
use facts::{Addresses, Elements, Facts, HostSide, Keys};
use nft::Table;
use runtime::{Conflist, PluginConfig};

use crate::plugins::PLUGINS;

/// A value in a plugin's configuration that is probably a mistake. STATUS of the plugin reports it
/// on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    /// Name of the plugin.
    pub plugin: &'static str,
    /// The key, its value and what it does.
    pub message: String,
    /// Whether every ADD fails.
    pub is_fatal: bool,
}

/// Returns the facts about the plugin called `name`; those of a plugin of which the host has
/// nothing, if it is of another suite.
pub fn facts(name: &str) -> &'static Facts {
    const OTHER: &Facts = &Facts::of("");
    PLUGINS.iter().find(|it| it.name == name).unwrap_or(OTHER)
}

/// Returns the facts about the plugin's IPAM plugin, with its keys; `None` if it has none of this
/// suite.
pub fn ipam(plugin: &PluginConfig) -> Option<(&'static Facts, &Keys)> {
    cni::role(plugin.ipam_type()?)?;
    Some((facts(plugin.ipam_type()?), plugin.ipam()?))
}

/// Returns the name of the bridge whose ports the plugin makes; `None` for other plugins.
pub fn bridge_of(plugin: &PluginConfig) -> Option<&str> {
    match facts(&plugin.program).host_side {
        HostSide::Port(bridge) => Some(bridge(&plugin.config)),
        HostSide::Routed | HostSide::Witness | HostSide::None => None,
    }
}

/// Returns whether the node has a route to each pod of the plugin through the host end of that
/// pod's veth pair.
pub fn is_routed(plugin: &PluginConfig) -> bool {
    matches!(facts(&plugin.program).host_side, HostSide::Routed)
}

/// Returns the keys of the plugin's `ipam` section if they are those of ranges.
pub(super) fn ranges_of(plugin: &PluginConfig) -> Option<&Keys> {
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

/// Returns the probable mistakes in the configuration of a plugin and of its IPAM plugin.
pub fn warnings(plugin: &PluginConfig) -> Vec<ConfigWarning> {
    let own = (facts(&plugin.program), &plugin.config);
    let sections = [own].into_iter().chain(ipam(plugin));
    let warnings = sections.flat_map(|(facts, keys)| {
        let messages = (facts.warnings)(keys).into_iter();
        messages.map(|message| ConfigWarning {
            plugin: facts.name,
            message,
            is_fatal: facts.are_warnings_fatal,
        })
    });
    warnings.collect()
}

/// Returns the tables of this suite, each once, with the names of the plugins that add elements to
/// it.
pub fn elements() -> Vec<(Vec<&'static str>, &'static Elements)> {
    let mut found = Vec::<(Vec<_>, &Elements)>::new();
    let tables = |it: &'static Facts| it.tables.iter().map(|of| (it.name, of));
    for (plugin, elements) in PLUGINS.iter().flat_map(tables) {
        match found.iter_mut().find(|it| it.1.table == elements.table) {
            Some((plugins, _)) => plugins.push(plugin),
            None => found.push((vec![plugin], elements)),
        }
    }
    found
}

/// Returns the facts about the table of this suite that is called `name`.
pub fn elements_in(name: &str) -> Option<&'static Elements> {
    let mut tables = PLUGINS.iter().flat_map(|it| it.tables);
    tables.find(|it| it.table == name)
}

/// Returns the tables of this suite.
pub fn tables() -> Vec<Table> {
    elements().iter().flat_map(|it| (it.1.tables)()).collect()
}
