//! The executable `host-local`.

fn main() -> std::process::ExitCode {
    cni::run(&host_local::PLUGIN)
}
