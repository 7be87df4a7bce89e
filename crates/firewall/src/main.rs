//! The executable `firewall`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&firewall::PLUGIN))
}
