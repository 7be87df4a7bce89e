//! CNI plugin `vrf`: adds a container's interface to a VRF.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&vrf::PLUGIN)
}
