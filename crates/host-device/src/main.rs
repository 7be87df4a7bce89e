//! The executable `host-device`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&host_device::PLUGIN)
}
