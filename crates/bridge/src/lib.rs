//! CNI plugin `bridge`: joins a sandbox to a Linux bridge by a veth pair.

use std::process::ExitCode;

use cni::{Plugin, SpecVersion};
use detach::Task;

mod add;
mod check;
mod config;
mod del;
mod firewall;
mod frames;
mod gateway;
mod gc;
mod host;
mod host_end;
mod made;
mod masquerade;
mod mtu;
mod plan;
mod raw;
mod reload;
mod sandbox;
mod status;
mod vlan;

pub use config::Config;
pub use plan::{Plan, derived_mac};
pub use raw::RawConfig;

/// Runs the verb that the environment asks for, or a task that another process of this executable left.
pub fn main() -> ExitCode {
    match Task::of_this_process() {
        Some(task) => netlink::finish(&task),
        None => cni::run(&PLUGIN),
    }
}

const PLUGIN: Plugin = Plugin {
    name: "bridge",
    version: env!("CARGO_PKG_VERSION"),
    spec_versions: SpecVersion::ALL,
    add: add::add,
    del: del::del,
    check: check::check,
    status: status::status,
    gc: gc::gc,
    reload: Some(reload::reload),
};
