//! The executable `cnitool`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnitool::run()
}
