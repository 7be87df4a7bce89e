//! Checks the list of plugins and the direction of dependencies between the crates.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test panics where it fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates in layers. A crate uses only crates of earlier layers. The plugins are one layer, so
/// no plugin uses another one.
fn layers() -> Vec<Vec<&'static str>> {
    let plugins = schema::plugins().collect();
    vec![
        vec!["cni", "netns", "detach", "kubelet"],
        vec!["netlink"],
        vec!["nft", "tc"],
        vec!["attach"],
        plugins,
        vec!["schema", "runtime"],
        vec!["node"],
        vec!["metrics", "upkeep"],
        vec!["cnitool", "agent"],
    ]
}

/// Crates of the kernel's interfaces, which must not know the CNI protocol.
const KERNEL: [&str; 5] = ["netns", "detach", "netlink", "nft", "tc"];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = crates().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the crates, which are the names of their folders.
fn names() -> BTreeSet<String> {
    let entries = fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().join("Cargo.toml").exists());
    folders
        .map(|folder| folder.file_name().into_string().unwrap())
        .collect()
}

/// Returns the crates that a manifest lists below `[dependencies]`.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let lines = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]");
    let lines = lines.skip(1).take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_use_crates_of_earlier_layers_only() {
    let layers = layers();
    let layer_of = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    let mut count = 0;
    for name in names() {
        let own = layer_of(&name).unwrap_or_else(|| panic!("{name} is in no layer"));
        for used in dependencies(&read(format!("{name}/Cargo.toml"))) {
            let Some(layer) = layer_of(&used) else {
                continue;
            };
            assert!(layer < own, "{name} uses {used}");
            let is_kernel = KERNEL.contains(&name.as_str());
            assert!(!is_kernel || used != "cni", "{name} uses {used}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn tests_link_no_crate_of_ours_but_messages_of_the_kubelet() {
    let mut used = dependencies(&read("../tests/Cargo.toml"));
    used.remove("kubelet");
    assert!(used.is_disjoint(&names()), "{used:?}");
}

#[test]
fn every_plugin_is_listed_and_only_plugins_are() {
    let listed: BTreeSet<_> = schema::plugins().map(str::to_owned).collect();
    let lines = read("plugins.txt");
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.count(), listed.len(), "each line is a plugin");
    let is_plugin = |name: &String| {
        let source = fs::read_to_string(crates().join(name).join("src/lib.rs"));
        source.is_ok_and(|source| source.contains("const PLUGIN: Plugin"))
    };
    let plugins: BTreeSet<_> = names().into_iter().filter(is_plugin).collect();
    assert_eq!(listed, plugins);
}

#[test]
fn readme_and_map_name_every_crate() {
    let (readme, map) = (read("../README.md"), read("README.md"));
    for name in names() {
        assert!(map.contains(&format!("| `{name}` |")), "map: {name}");
    }
    for plugin in schema::plugins() {
        let page = format!("crates/{plugin}/README.md");
        assert!(readme.contains(&page), "README.md: {page}");
    }
}
