//! CNI plugin `static`: returns the addresses that the configuration or the runtime names.
//!
//! The plugin stores nothing. So DEL and GC have nothing to do, and the plugin does not detect an
//! address that is already in use.

use cni::{Plugin, SpecVersion};
use facts::{Addresses, Argument, Facts, lacks_all};

mod config;
mod raw;
mod verbs;

pub use config::Config;
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

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    addresses: Addresses::Fixed(|keys| {
        let keys = facts::read::<RawConfig>(keys).unwrap_or_default();
        let parse = |it: &RawAddress| Some((it.address.parse().ok()?, it.gateway.parse().ok()));
        keys.addresses.iter().filter_map(parse).collect()
    }),
    argument: Some(Argument {
        capabilities: &["ips"],
        is_needed: |keys| lacks_all(keys, &["addresses"]),
        is_required: false,
        impact: "static has no address: an ADD fails unless the runtime passes one in CNI_ARGS.",
    }),
    warnings: |keys| facts::read(keys).map_or_else(Vec::new, |raw| config::warnings(&raw)),
    are_warnings_fatal: true,
    ..Facts::of(PLUGIN.name)
};
