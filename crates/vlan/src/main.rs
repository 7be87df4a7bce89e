//! The executable `vlan`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&vlan::PLUGIN))
}
