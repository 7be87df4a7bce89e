//! CNI plugin `host-local`: leases addresses from ranges and keeps them in files.

use std::process::ExitCode;

fn main() -> ExitCode {
    host_local::main()
}
