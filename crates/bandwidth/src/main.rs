//! The executable `bandwidth`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&bandwidth::PLUGIN))
}
