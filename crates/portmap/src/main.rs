//! The executable `portmap`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&portmap::PLUGIN))
}
