//! The executable `cnitool`.

fn main() -> std::process::ExitCode {
    cnitool::run()
}
