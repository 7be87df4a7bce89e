//! What must exist for each plugin.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::tree::Tree;

const ROLES: [&str; 5] = [
    "interface pair",
    "interface single",
    "ipam",
    "ipam before the link",
    "chained",
];

/// Executables that are no plugins.
const TOOLS: [&str; 2] = ["cnitool", "cni-agent"];

/// Returns a message for each plugin and place where something is missing or too much.
pub fn faults(tree: &Tree) -> Vec<String> {
    let schema = tree.text("conf-examples/conflist.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let plugins = tree.plugins();
    let of_plugins = plugins.flat_map(|it| of_plugin(tree, it, &schema));
    of_plugins
        .chain(of_crates(tree))
        .chain(of_image(tree))
        .collect()
}

fn of_plugin(tree: &Tree, (name, role): (&str, &str), schema: &Value) -> Vec<String> {
    let is_defined = schema.pointer(&format!("/$defs/{name}")).is_some();
    let is_used = tree.dependencies("crates/node/Cargo.toml").contains(name);
    let own = |file: &str| format!("crates/{name}/{file}");
    let files = ["Cargo.toml", "src/lib.rs", "src/main.rs", "README.md"].map(own);
    let missing = files.iter().filter(|it| !tree.0.contains_key(*it));
    let mut faults: Vec<_> = missing.map(|it| format!("{it} is missing")).collect();
    faults.extend((!ROLES.contains(&role.trim())).then(|| format!("{name}: {role:?} is no role")));
    faults.extend((!is_defined).then(|| format!("the schema lacks {name}")));
    faults.extend((!is_used).then(|| format!("node does not use {name}")));
    for (file, text) in [
        ("README.md", format!("(crates/{name}/README.md)")),
        ("Cargo.lock", format!("\nname = \"{name}\"\n")),
        (
            "crates/schema/tests/generate/plugins.rs",
            format!("(\"{name}\","),
        ),
        ("crates/node/src/plugins.rs", library(tree, name)),
        (&own("src/lib.rs"), "FACTS".to_owned()),
    ] {
        let is_there = has(tree.text(file), &text);
        faults.extend((!is_there).then(|| format!("{file} lacks {text}")));
    }
    faults
}

/// Compares the list of plugins with the crates, and the map with the other crates.
fn of_crates(tree: &Tree) -> Vec<String> {
    let map = tree.text("crates/README.md");
    let faults = tree.crates().into_iter().filter_map(|name| {
        let source = tree.text(&format!("crates/{name}/src/lib.rs"));
        let is_plugin = source.contains("pub const PLUGIN: Plugin");
        if is_plugin != tree.plugins().any(|it| it.0 == name) {
            return Some(format!("plugins.txt: {name}"));
        }
        let is_mapped = is_plugin || map.contains(&format!("| `{name}` |"));
        (!is_mapped).then(|| format!("crates/README.md lacks {name}"))
    });
    faults.collect()
}

/// Compares the list of plugins with the executables in the image.
fn of_image(tree: &Tree) -> Option<String> {
    let image = tree.text("conf-examples/kubernetes/Containerfile").lines();
    let copied = image.filter_map(|it| it.strip_prefix("COPY ")?.strip_suffix(" /cni/"));
    let copied: BTreeSet<_> = copied.flat_map(|it| it.split(' ')).collect();
    let listed: BTreeSet<_> = tree.plugins().map(|it| it.0).chain(TOOLS).collect();
    (copied != listed).then(|| format!("Containerfile: {copied:?}"))
}

/// Returns the name of a plugin's library.
fn library(tree: &Tree, name: &str) -> String {
    let manifest = tree.text(&format!("crates/{name}/Cargo.toml"));
    let named = manifest.split_once("[lib]\nname = \"");
    let named = named.and_then(|it| it.1.split('"').next());
    named.map_or_else(|| name.replace('-', "_"), str::to_owned)
}

/// Returns whether `text` has `part`, not as a part of a longer word.
pub fn has(text: &str, part: &str) -> bool {
    let is_word = |it: Option<char>| it.is_some_and(|it| it.is_alphanumeric() || it == '_');
    text.match_indices(part).any(|(at, part)| {
        let (before, after) = (text.get(..at), text.get(at + part.len()..));
        let joins_before =
            is_word(before.and_then(|it| it.chars().last())) && is_word(part.chars().next());
        let joins_after =
            is_word(after.and_then(|it| it.chars().next())) && is_word(part.chars().last());
        !joins_before && !joins_after
    })
}
