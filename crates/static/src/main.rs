//! The executable `static`.

fn main() -> std::process::ExitCode {
    cni::run(&static_ipam::PLUGIN)
}
