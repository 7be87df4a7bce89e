//! CNI plugin `ptp`: connects a sandbox to the host by a veth pair and routes.

use cni::Plugin;
use facts::{Extent, Facts, HostSide, Task};
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
    lacks: || {
        let lack = attach::lack_of_pairs(&Connection::open()?, PLUGIN.name, None)?;
        Ok(lack.into_iter().collect())
    },
    tasks: |_, _| vec![(Task::MakeInterface, Extent::All)],
    replaces_rules: true,
    ..Facts::of(PLUGIN.name)
};
