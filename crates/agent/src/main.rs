//! The executable `cni-agent`.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::run()
}
