//! The version of containerd on the node.

use std::path::Path;

use super::occupied::RUNTIME_SOCKETS;
use super::program::output_of;

/// Returns the version that `containerd --version` prints. Returns `None` if containerd does not run
/// or does not answer, or if CRI-O runs: then CRI-O may attach the pods.
pub(super) fn version() -> Option<String> {
    let [containerd, cri_o] = RUNTIME_SOCKETS.map(|it| Path::new(it).exists());
    if !containerd || cri_o {
        return None;
    }
    let printed = output_of(&["containerd", "--version"], &[]).ok()??;
    let printed = String::from_utf8_lossy(&printed);
    // containerd github.com/containerd/containerd/v2 v2.0.0 207ad711eabd
    let version = printed.split_whitespace().nth(2)?;
    Some(version.trim_start_matches('v').to_owned())
}
