//! The executable `loopback`.

use std::process::ExitCode;

fn main() -> ExitCode {
    loopback::main()
}
