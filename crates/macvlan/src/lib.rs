//! CNI plugin `macvlan`: gives a sandbox a link with a MAC of its own on a network card.

use attach::single;
use cni::Plugin;
use facts::Facts;
use netlink::{MacVlanMode, NewKind};

mod config;
mod raw;

pub use config::Macvlan;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = single::plugin::<Macvlan>("macvlan", include_str!("../README.md"));

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = single::facts(PLUGIN.name, || {
    single::missing_features(
        NewKind::Macvlan(MacVlanMode::Bridge, None),
        "macvlan links (CONFIG_MACVLAN)",
        PLUGIN.name,
    )
});
