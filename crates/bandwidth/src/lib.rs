//! CNI plugin `bandwidth`: limits the rates of a sandbox.

use std::process::ExitCode;

use cni::{Plugin, SpecVersion};
use detach::Task;

mod add;
mod backstop;
mod check;
mod config;
mod del;
mod gc;
mod host_link;
mod ifb;
mod plan;
mod policy;
pub mod quantity;
mod raw;
mod reload;
mod status;

pub use backstop::{TABLE, tables};
pub use config::{Config, POD_ANNOTATIONS};
pub use plan::Plan;
pub use raw::RawConfig;

/// Runs the verb that the environment asks for, or a task that another process of this executable left.
pub fn main() -> ExitCode {
    match Task::of_this_process() {
        Some(task) => netlink::finish(&task),
        None => cni::run(&PLUGIN),
    }
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
