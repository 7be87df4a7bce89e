//! The executable `host-device`.

fn main() -> std::process::ExitCode {
    cni::run(&host_device::PLUGIN)
}
