//! The executable `macvlan`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&macvlan::PLUGIN))
}
