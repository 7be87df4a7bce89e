//! The texts of the source tree, which a test may change in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Texts by path from the top of the source tree.
#[derive(Clone)]
pub struct Tree(pub BTreeMap<String, String>);

impl Tree {
    /// Reads the crates, and the files outside that list plugins.
    pub fn read() -> Self {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut tree = Self(BTreeMap::new());
        let mut left = vec!["crates".to_owned()];
        left.extend(OUTSIDE.map(str::to_owned));
        while let Some(path) = left.pop() {
            let place = top.join(&path);
            if let Ok(entries) = fs::read_dir(&place) {
                let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
                left.extend(names.map(|name| format!("{path}/{name}")));
            } else if let Ok(text) = fs::read_to_string(place) {
                tree.0.insert(path, text);
            }
        }
        tree
    }

    /// Returns the text of a file; empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.0.get(path).map_or("", String::as_str)
    }

    /// Returns the names of the crates, which are the names of their folders.
    pub fn crates(&self) -> BTreeSet<&str> {
        let paths = self.0.keys().filter_map(|it| it.strip_prefix("crates/"));
        let names = paths.filter_map(|it| it.strip_suffix("/Cargo.toml"));
        names.collect()
    }

    /// Returns the crates that a manifest lists below `[dependencies]`.
    pub fn dependencies(&self, manifest: &str) -> BTreeSet<&str> {
        let lines = self.text(manifest).lines();
        let lines = lines.skip_while(|line| *line != "[dependencies]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Returns the lines of `plugins.txt`: name and role of each plugin.
    pub fn plugins(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.text("crates/plugins.txt").lines();
        let lines = lines.filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split_once(' ').unwrap_or((line, "")))
    }
}

const OUTSIDE: [&str; 5] = [
    "README.md",
    "Cargo.lock",
    "tests/Cargo.toml",
    "conf-examples/conflist.schema.json",
    "conf-examples/kubernetes/Containerfile",
];
