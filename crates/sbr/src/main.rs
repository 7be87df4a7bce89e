//! CNI plugin `sbr`: routes a container's packets by their source address.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::run(&sbr::PLUGIN)
}
