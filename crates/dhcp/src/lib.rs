//! CNI plugin `dhcp`: leases addresses from a DHCP server over the container's interface.
//!
//! The executable is both sides: each verb asks the daemon, `dhcp daemon`, over a Unix socket. The
//! daemon leases the addresses, renews them, and changes the interface when a lease changes. Only
//! the daemon uses tokio. Source: RFC 2131, RFC 3442, and the plugin `dhcp` of
//! containernetworking/plugins.

use std::process::ExitCode;

use cni::{Plugin, SpecVersion};
use facts::Facts;

mod client;
mod clock;
mod config;
mod daemon;
#[cfg(fuzzing)]
pub mod fuzzing;
mod lease;
mod message;
mod raw;
mod record;
mod reply;
mod verbs;
mod wire;

pub use config::Config;
pub use raw::RawConfig;

/// The plugin and its verbs.
pub const PLUGIN: Plugin = Plugin {
    name: "dhcp",
    page: include_str!("../README.md"),
    spec_versions: SpecVersion::ALL,
    add: verbs::add,
    del: verbs::del,
    check: verbs::check,
    status: verbs::status,
    gc: verbs::gc,
    reload: None,
};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    warnings: verbs::warnings,
    are_warnings_fatal: true,
    ..Facts::of(PLUGIN.name)
};

/// Runs the daemon if the first argument is `daemon`, or else the verb of the request.
pub fn run() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("daemon") => daemon::run(arguments),
        _ => cni::run(&PLUGIN),
    }
}
