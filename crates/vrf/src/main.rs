//! CNI plugin `vrf`: adds a container's interface to a VRF.

fn main() -> std::process::ExitCode {
    cni::run(&vrf::PLUGIN)
}
