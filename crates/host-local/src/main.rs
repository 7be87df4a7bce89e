//! The executable `host-local`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&host_local::PLUGIN)
}
