//! CNI plugin `ptp`: connects a sandbox to the host by a veth pair and routes.

use cni::Plugin;
use facts::{Facts, HostSide, Scope, Task};
use netlink::Connection;

mod config;
mod desired;
mod raw;

pub use config::Config;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = attach::plugin::<Config>(include_str!("../README.md"));

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    host_side: HostSide::Routed,
    tables: &[attach::MASQUERADE],
    missing_features: || attach::missing_pairs(&Connection::open()?, PLUGIN.name, None),
    tasks: |_, _| vec![(Task::MakeInterface, Scope::All)],
    replaces_rules: true,
    ..Facts::of(PLUGIN.name)
};
