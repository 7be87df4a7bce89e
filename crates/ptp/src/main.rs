//! The executable `ptp`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ptp::main()
}
