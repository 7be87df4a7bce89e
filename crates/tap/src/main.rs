//! The executable `tap`.

fn main() -> std::process::ExitCode {
    netlink::run(|| tun::run(|| cni::run(&tap::PLUGIN)))
}
