//! The executable `static`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&static_ipam::PLUGIN)
}
