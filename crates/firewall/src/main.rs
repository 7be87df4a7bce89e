//! The executable `firewall`.

use std::process::ExitCode;

fn main() -> ExitCode {
    firewall::main()
}
