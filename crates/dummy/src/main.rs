//! The executable `dummy`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&dummy::PLUGIN))
}
