//! The executable `firewall`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| cni::run(&firewall::PLUGIN))
}
