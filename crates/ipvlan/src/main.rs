//! The executable `ipvlan`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&ipvlan::PLUGIN))
}
