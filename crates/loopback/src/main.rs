//! The executable `loopback`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&loopback::PLUGIN)
}
