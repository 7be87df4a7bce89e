//! CNI plugin `static`: gives the addresses that the configuration or the runtime names.
//!
//! The plugin stores nothing. So DEL and GC have nothing to do, and the plugin does not detect an
//! address that is already in use.

use std::process::ExitCode;

use cni::{Plugin, SpecVersion};

mod config;
mod raw;
mod verbs;

pub use config::Config;
pub use raw::{RawAddress, RawConfig};

/// Runs the verb of `CNI_COMMAND`.
pub fn main() -> ExitCode {
    cni::run(&PLUGIN)
}

const PLUGIN: Plugin = Plugin {
    name: "static",
    version: env!("CARGO_PKG_VERSION"),
    spec_versions: SpecVersion::ALL,
    add: verbs::add,
    // The plugin stores nothing, so DEL and GC succeed even with an invalid configuration.
    del: |_| Ok(()),
    check: verbs::check,
    status: verbs::status,
    gc: |_| Ok(()),
    reload: None,
};
