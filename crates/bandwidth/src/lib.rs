//! CNI plugin `bandwidth`: limits the rates of a sandbox.

use cni::{Plugin, SpecVersion};

mod add;
mod backstop;
mod check;
mod config;
mod del;
mod gc;
mod host_link;
mod ifb;
mod policy;
pub mod quantity;
mod raw;
mod reload;
mod status;

pub use backstop::{TABLE, tables};
pub use config::{Config, POD_ANNOTATIONS};
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "bandwidth",
    spec_versions: SpecVersion::WITH_INTERFACES,
    add: add::add,
    del: del::del,
    check: check::check,
    status: status::status,
    gc: gc::gc,
    reload: Some(reload::reload),
};
