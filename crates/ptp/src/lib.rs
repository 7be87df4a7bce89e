//! CNI plugin `ptp`: connects a sandbox to the host by a veth pair and routes.

use cni::{Plugin, SpecVersion};

mod config;
mod desired;
mod raw;

pub use config::Config;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "ptp",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: attach::add::<Config>,
    del: attach::del::<Config>,
    check: attach::check::<Config>,
    status: attach::status::<Config>,
    gc: attach::gc,
    reload: Some(attach::reload::<Config>),
};
