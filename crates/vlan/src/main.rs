//! The executable `vlan`.

fn main() -> std::process::ExitCode {
    netlink::run(|| cni::run(&vlan::PLUGIN))
}
