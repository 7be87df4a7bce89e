//! CNI plugin `ptp`: connects a sandbox to the host by a veth pair and routes.

use std::process::ExitCode;

use cni::{Plugin, SpecVersion};

mod config;
mod desired;
mod raw;

pub use config::Config;
pub use raw::RawConfig;

/// Runs the verb of `CNI_COMMAND`.
pub fn main() -> ExitCode {
    netlink::run(|| cni::run(&PLUGIN))
}

const PLUGIN: Plugin = Plugin {
    name: "ptp",
    version: env!("CARGO_PKG_VERSION"),
    spec_versions: SpecVersion::ALL,
    add: attach::add::<Config>,
    del: attach::del::<Config>,
    check: attach::check::<Config>,
    status: attach::status::<Config>,
    gc: attach::gc,
    reload: Some(attach::reload::<Config>),
};
