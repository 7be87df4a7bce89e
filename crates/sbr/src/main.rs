//! CNI plugin `sbr`: routes a container's packets by their source address.

fn main() -> std::process::ExitCode {
    cni::run(&sbr::PLUGIN)
}
