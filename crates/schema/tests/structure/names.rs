//! Names of plugins in the tools, which should ask for facts instead.

use crate::plugins::has;
use crate::tree::Tree;

/// Crates that know plugins only by their facts.
const TOOLS: [&str; 6] = ["node", "upkeep", "metrics", "cnitool", "agent", "attach"];

/// The file that lists the plugins.
const LIST: &str = "crates/node/src/plugins.rs";

/// The values of a plugin's library that have its name.
const VALUES: [&str; 2] = ["PLUGIN", "FACTS"];

/// What may stand before a word that is also the name of a plugin: it is a key or part of a sysctl.
const BEFORE: [&str; 4] = ["key(", "is_set(", "invalid(", "\"net\", "];

/// Lines in which such a word means something else.
const OTHERS: [(&str, &str); 4] = [
    (
        "crates/cnitool/src/doctor/mod.rs",
        r#"("bridge", bridges::judge, "#,
    ),
    (
        "crates/cnitool/src/doctor/mod.rs",
        r#"("firewall", firewall::judge, "#,
    ),
    (
        "crates/cnitool/src/migrate/nftables.rs",
        r#"const SPOOF: (&str, &str) = ("bridge", "nat");"#,
    ),
    (
        "crates/metrics/src/snapshot.rs",
        r#"const PARTS: [&str; 6] = ["cache", "#,
    ),
];

/// Returns the lines of the tools that name a plugin, and the entries of [`OTHERS`] without a line.
pub fn faults(tree: &Tree) -> Vec<String> {
    let names = tree.plugins().map(|it| format!("\"{}\"", it.0));
    let names: Vec<_> = names.chain(VALUES.map(str::to_owned)).collect();
    let mut unused = OTHERS.to_vec();
    let mut faults = Vec::new();
    for (path, text) in sources(tree) {
        let names: Vec<_> = names.iter().filter(|it| text.contains(*it)).collect();
        let is_named = |line: &&str| names.iter().any(|it| is_there(line, it));
        let lines = if names.is_empty() { "" } else { text }.lines();
        let code = lines.filter(|it| !it.trim_start().starts_with("//"));
        for line in code.filter(is_named) {
            let is_other = |it: &(&str, &str)| it.0 == path && line.contains(it.1);
            match OTHERS.iter().find(|it| is_other(it)) {
                Some(other) => unused.retain(|it| it != other),
                None => faults.push(format!("{path}: {line}")),
            }
        }
    }
    let unused = unused.iter();
    faults.extend(unused.map(|(path, line)| format!("{path} lacks {line}")));
    faults
}

/// Returns whether the line has `name` in another place than behind one of [`BEFORE`].
fn is_there(line: &str, name: &str) -> bool {
    let mut places = line.match_indices(name).map(|it| line.split_at(it.0).0);
    let is_value = VALUES.contains(&name);
    places.any(|before| !BEFORE.iter().any(|it| before.ends_with(it)))
        && (!is_value || has(line, name))
}

/// Returns the sources of the tools without tests, by path.
fn sources(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let files = tree.0.iter().filter(|(path, _)| {
        let mut parts = path.split('/').skip(1);
        let is_tool = parts.next().is_some_and(|it| TOOLS.contains(&it));
        is_tool && parts.next() == Some("src") && *path != LIST && !is_test(path)
    });
    files.map(|(path, text)| {
        let tests =
            ["", "pub(crate) ", "pub "].map(|it| format!("\n#[cfg(test)]\n{it}mod tests {{\n"));
        let ends = tests.iter().filter_map(|it| text.find(it));
        let end = ends.min().unwrap_or(text.len());
        (path.as_str(), text.get(..end).unwrap())
    })
}

fn is_test(path: &str) -> bool {
    let is_source = path.strip_suffix(".rs");
    is_source.is_none_or(|it| it.ends_with("tests") || it.contains("/tests/"))
}
