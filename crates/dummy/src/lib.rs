//! CNI plugin `dummy`: gives a sandbox a link that drops what it sends.

use attach::single;
use cni::Plugin;
use facts::Facts;
use netlink::NewKind;

mod config;
mod raw;

pub use config::Dummy;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = single::plugin::<Dummy>("dummy", include_str!("../README.md"));

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = single::facts(PLUGIN.name, || {
    single::missing_features(NewKind::Dummy, "dummy links (CONFIG_DUMMY)", PLUGIN.name)
});
