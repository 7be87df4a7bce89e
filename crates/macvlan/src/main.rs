//! The executable `macvlan`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&macvlan::PLUGIN))
}
