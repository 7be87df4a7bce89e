//! The recipe "Adding a plugin" of `crates/README.md`, carried out in a copy of the tree.

use std::collections::BTreeSet;

use crate::tree::Tree;
use crate::{layers, names, plugins};

/// An existing file that the recipe names, and the change.
type Step = (&'static str, fn(&str) -> String);

/// The steps for a plugin called `wormhole`.
const STEPS: [Step; 8] = [
    ("crates/plugins.txt", |it| {
        it.to_owned() + "wormhole    interface single\n"
    }),
    ("crates/node/Cargo.toml", |it| {
        behind(
            it,
            "[dependencies]\n",
            "wormhole = { path = \"../wormhole\" }\n",
        )
    }),
    ("crates/node/src/plugins.rs", |it| {
        behind(it, "plugins!(\n    bridge,", " wormhole,")
    }),
    ("crates/schema/tests/generate/plugins.rs", |it| {
        behind(
            it,
            "        (\"loopback\", plugin([loopback])),\n",
            "        (\"wormhole\", plugin([])),\n",
        )
    }),
    ("README.md", |it| {
        it.to_owned() + "| [`wormhole`](crates/wormhole/README.md) | joins |\n"
    }),
    ("conf-examples/kubernetes/Containerfile", |it| {
        behind(it, "COPY bridge", " wormhole")
    }),
    ("conf-examples/conflist.schema.json", |it| {
        behind(it, "\"$defs\": {", "\"wormhole\": {},")
    }),
    ("Cargo.lock", |it| {
        it.to_owned() + "\n[[package]]\nname = \"wormhole\"\nversion = \"2.0.0\"\n"
    }),
];

/// The files of the plugin itself.
const FILES: [(&str, &str); 4] = [
    (
        "crates/wormhole/Cargo.toml",
        "[package]\nname = \"wormhole\"\n\n[dependencies]\ncni.workspace = true\n",
    ),
    (
        "crates/wormhole/src/lib.rs",
        "pub const PLUGIN: Plugin = …;\npub const FACTS: Facts = …;\n",
    ),
    ("crates/wormhole/src/main.rs", "fn main() {}\n"),
    ("crates/wormhole/README.md", "# wormhole\n"),
];

fn behind(text: &str, place: &str, more: &str) -> String {
    assert!(text.contains(place), "{place}");
    text.replacen(place, &format!("{place}{more}"), 1)
}

/// Returns what the tests find after all steps, except for that of the file `left_out`.
fn faults(tree: &Tree, left_out: &str) -> Vec<String> {
    let mut tree = tree.clone();
    for (path, change) in STEPS.iter().filter(|it| it.0 != left_out) {
        let changed = change(tree.text(path));
        tree.0.insert((*path).to_owned(), changed);
    }
    for (path, text) in FILES.iter().filter(|it| it.0 != left_out) {
        tree.0.insert((*path).to_owned(), (*text).to_owned());
    }
    [layers::faults, plugins::faults, names::faults]
        .iter()
        .flat_map(|it| it(&tree))
        .collect()
}

#[test]
fn recipe_is_complete_and_each_step_is_tested() {
    let tree = Tree::read();
    assert_eq!(
        faults(&tree, ""),
        Vec::<String>::new(),
        "the recipe lacks a step"
    );
    let files = FILES.iter().map(|it| it.0);
    for left_out in STEPS.iter().map(|it| it.0).chain(files) {
        assert!(
            !faults(&tree, left_out).is_empty(),
            "no test misses {left_out}"
        );
    }
}

#[test]
fn recipe_names_the_files_of_the_steps() {
    let tree = Tree::read();
    let page = tree.text("crates/README.md");
    let (_, recipe) = page.split_once("\n## Adding a plugin\n").unwrap();
    let (recipe, _) = recipe.split_once("\n## ").unwrap();
    let (files, steps) = recipe.split_once("\n1. ").unwrap();
    let words = |text| str::split(text, '`').skip(1).step_by(2);
    let paths = words(steps).map(|it| match it.strip_prefix("../") {
        Some(path) => path.to_owned(),
        None => format!("crates/{it}"),
    });
    let named: BTreeSet<_> = paths.filter(|it| tree.0.contains_key(it)).collect();
    assert_eq!(named, STEPS.iter().map(|it| it.0.to_owned()).collect());
    for (path, _) in FILES {
        let file = path.strip_prefix("crates/wormhole/").unwrap();
        assert!(words(files).any(|it| it == file), "{file}");
    }
}
