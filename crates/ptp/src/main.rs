//! The executable `ptp`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&ptp::PLUGIN))
}
