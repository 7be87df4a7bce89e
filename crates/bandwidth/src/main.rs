//! The executable `bandwidth`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bandwidth::main()
}
