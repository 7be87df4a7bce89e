//! The executable `bridge`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&bridge::PLUGIN))
}
