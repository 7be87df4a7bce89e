//! CNI plugin `tuning`: changes sysctls of a sandbox and settings of its interface.

fn main() -> std::process::ExitCode {
    cni::run(&tuning::PLUGIN)
}
