//! The executable `ipvlan`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&ipvlan::PLUGIN))
}
