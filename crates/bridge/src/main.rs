//! The executable `bridge`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&bridge::PLUGIN))
}
