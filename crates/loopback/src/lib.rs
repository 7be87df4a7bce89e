//! CNI plugin `loopback`: brings a sandbox's loopback interface up.

use std::process::ExitCode;

use cni::{Plugin, SpecVersion};

mod lo;

/// Runs the verb of `CNI_COMMAND`.
pub fn main() -> ExitCode {
    cni::run(&PLUGIN)
}

const PLUGIN: Plugin = Plugin {
    name: "loopback",
    version: env!("CARGO_PKG_VERSION"),
    spec_versions: SpecVersion::ALL,
    add: lo::add,
    del: lo::del,
    check: lo::check,
    status: lo::status,
    gc: lo::gc,
    reload: None,
};
