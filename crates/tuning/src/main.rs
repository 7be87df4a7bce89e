//! CNI plugin `tuning`: changes sysctls of a sandbox and settings of its interface.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&tuning::PLUGIN)
}
