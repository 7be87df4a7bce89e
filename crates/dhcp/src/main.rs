//! The executable `dhcp`.

fn main() -> std::process::ExitCode {
    dhcp::run()
}
