//! CNI plugin `ipvlan`: gives a sandbox a link with the MAC of a network card.

use attach::single;
use cni::Plugin;
use facts::Facts;
use netlink::{IpVlanMode, NewKind};

mod config;
mod raw;

pub use config::Ipvlan;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = single::plugin::<Ipvlan>("ipvlan", include_str!("../README.md"));

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = single::facts(PLUGIN.name, || {
    single::missing_features(
        NewKind::Ipvlan(IpVlanMode::L2),
        "ipvlan links (CONFIG_IPVLAN)",
        PLUGIN.name,
    )
});
