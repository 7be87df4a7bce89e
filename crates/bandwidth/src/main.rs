//! CNI plugin `bandwidth`: limits the rates of a sandbox.

use std::process::ExitCode;

mod config;
mod plugin;

fn main() -> ExitCode {
    cni::run(&plugin::Bandwidth)
}
