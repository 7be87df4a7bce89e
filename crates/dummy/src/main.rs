//! The executable `dummy`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&dummy::PLUGIN))
}
