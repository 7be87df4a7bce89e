//! The executable `loopback`.

fn main() -> std::process::ExitCode {
    cni::run(&loopback::PLUGIN)
}
