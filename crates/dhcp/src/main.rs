//! The executable `dhcp`.

use std::process::ExitCode;

fn main() -> ExitCode {
    dhcp::run()
}
