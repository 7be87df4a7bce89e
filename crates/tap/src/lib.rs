//! CNI plugin `tap`: gives a sandbox a tap link, which a program such as a virtual machine opens.

use attach::single;
use cni::Plugin;
use facts::{Facts, MissingFeature, Need};

mod config;
mod raw;

pub use config::Tap;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = single::plugin::<Tap>("tap", include_str!("../README.md"));

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = single::facts(PLUGIN.name, || {
    let tried = netlink::Tap::default().create(PLUGIN.name, None);
    let missing = tried.err().map(|error| MissingFeature {
        reason: format!("{error:#}"),
        plugins: Vec::new(),
        need: Need::with(&[]),
        modules: vec!["tun"],
    });
    Ok(missing.into_iter().collect())
});
