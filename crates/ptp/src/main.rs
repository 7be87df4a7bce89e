//! The executable `ptp`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&ptp::PLUGIN))
}
