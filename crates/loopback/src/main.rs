//! CNI plugin `loopback`: brings a sandbox's loopback interface up.

use std::process::ExitCode;

mod plugin;

fn main() -> ExitCode {
    cni::run(&plugin::Loopback)
}
