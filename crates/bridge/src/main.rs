//! The executable `bridge`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bridge::main()
}
