//! The executable `portmap`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&portmap::PLUGIN))
}
