//! CNI plugin `portmap`: forwards host ports to a sandbox.

use std::process::ExitCode;

mod config;
mod plugin;

fn main() -> ExitCode {
    cni::run(&plugin::Portmap)
}
