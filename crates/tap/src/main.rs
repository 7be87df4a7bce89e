//! The executable `tap`.

use std::process::ExitCode;

fn main() -> ExitCode {
    netlink::run(|| tun::run(|| cni::run(&tap::PLUGIN)))
}
