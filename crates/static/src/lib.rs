//! CNI plugin `static`: returns the addresses that the configuration or the runtime names.
//!
//! The plugin stores nothing. So DEL and GC have nothing to do, and the plugin does not detect an
//! address that is already in use.

use cni::{Plugin, SpecVersion};

mod config;
mod doubts;
mod raw;
mod verbs;

pub use config::Config;
pub use doubts::doubts;
pub use raw::{RawAddress, RawConfig};

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "static",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: verbs::add,
    // The plugin stores nothing, so DEL and GC succeed even with an invalid configuration.
    del: |_| Ok(()),
    check: verbs::check,
    status: verbs::status,
    gc: |_| Ok(()),
    reload: None,
};
