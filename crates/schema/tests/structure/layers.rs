//! The direction of dependencies between the crates.

use crate::tree::Tree;

/// Returns the crates in layers. A crate uses only crates of earlier layers. The plugins are one
/// layer, so no plugin uses another one.
fn layers(tree: &Tree) -> Vec<Vec<&str>> {
    vec![
        vec!["cni", "netns", "detach", "tun", "kubelet"],
        vec!["netlink", "cluster"],
        vec!["nft", "tc"],
        vec!["facts"],
        vec!["attach"],
        tree.plugins().map(|it| it.0).collect(),
        vec!["schema", "runtime"],
        vec!["node"],
        vec!["metrics", "upkeep"],
        vec!["cnitool", "agent"],
    ]
}

/// Crates of the kernel's interfaces, which must not know the CNI protocol.
const KERNEL: [&str; 6] = ["netns", "detach", "tun", "netlink", "nft", "tc"];

/// Returns a message for each wrong dependency.
pub fn faults(tree: &Tree) -> Vec<String> {
    let layers = layers(tree);
    let layer_of = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    let mut faults = Vec::new();
    for name in tree.crates() {
        let Some(own) = layer_of(name) else {
            faults.push(format!("{name} is in no layer"));
            continue;
        };
        for used in tree.dependencies(&format!("crates/{name}/Cargo.toml")) {
            let is_later = layer_of(used).is_some_and(|it| it >= own);
            if is_later || KERNEL.contains(&name) && used == "cni" {
                faults.push(format!("{name} uses {used}"));
            }
        }
    }
    let used = tree.dependencies("tests/Cargo.toml").into_iter();
    let used = used.filter(|it| *it != "kubelet" && tree.crates().contains(it));
    faults.extend(used.map(|it| format!("tests link {it}")));
    faults
}
