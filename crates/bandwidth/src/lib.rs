//! CNI plugin `bandwidth`: limits the rates of a sandbox.

use std::process::ExitCode;

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

/// Runs the verb of `CNI_COMMAND`.
pub fn main() -> ExitCode {
    netlink::run(|| cni::run(&PLUGIN))
}

const PLUGIN: Plugin = Plugin {
    name: "bandwidth",
    version: env!("CARGO_PKG_VERSION"),
    spec_versions: SpecVersion::WITH_INTERFACES,
    add: add::add,
    del: del::del,
    check: check::check,
    status: status::status,
    gc: gc::gc,
    reload: Some(reload::reload),
};
