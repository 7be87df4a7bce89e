//! CNI plugin `static`: returns the addresses that the configuration or the runtime names.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&static_ipam::PLUGIN)
}
