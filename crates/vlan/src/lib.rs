//! CNI plugin `vlan`: gives a sandbox a VLAN of a network card.

use attach::single;
use cni::Plugin;
use facts::Facts;
use netlink::NewKind;

mod config;
mod raw;

pub use config::Vlan;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = single::plugin::<Vlan>("vlan", include_str!("../README.md"));

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = single::facts(PLUGIN.name, || {
    single::missing_features(
        NewKind::Vlan(100),
        "VLAN links (CONFIG_VLAN_8021Q)",
        PLUGIN.name,
    )
});
