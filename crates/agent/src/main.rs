//! The executable `cni-agent`.

fn main() -> std::process::ExitCode {
    agent::run()
}
