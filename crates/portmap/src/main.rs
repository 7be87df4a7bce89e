//! CNI plugin `portmap`: forwards host ports to a sandbox.

use std::process::ExitCode;

mod add;
mod check;
mod conditions;
mod config;
mod del;
mod firewall;
mod gc;
mod holder;
mod localnet;
mod plan;
mod plugin;
mod record;
mod status;
mod table;

fn main() -> ExitCode {
    cni::run(&plugin::Portmap)
}
