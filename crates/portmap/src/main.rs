//! The executable `portmap`.

use std::process::ExitCode;

fn main() -> ExitCode {
    portmap::main()
}
