//! CNI plugin `host-local`: leases addresses from ranges and records the leases in files.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&host_local::PLUGIN)
}
