//! Checks for unknown keys, and suggests the intended one.

use node::{Network, Node, Source};
use serde_json::{Map, Value};

use super::edit;
use super::finding::Finding;

/// Checks each network's document, and each plugin with known keys.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &node.configuration.files {
        if let Ok(network) = &file.network {
            findings.extend(of_list(network).into_iter().map(|it| {
                let place = node.configuration.place(file);
                it.finding(&file.name, &place)
            }));
        }
    }
    for source in node.configuration.sources() {
        let place = node.configuration.place(source.file);
        let unknown = of_plugin(source).into_iter();
        findings.extend(unknown.map(|it| it.finding(&source.file.name, &place)));
    }
    findings
}

/// An unknown key.
#[derive(Debug, PartialEq, Eq)]
struct Unknown {
    /// The object that does not define it.
    whose: String,
    /// Its path: `ipam.ranges[][].subnetz`.
    path: String,
    /// The key that may have been intended.
    nearest: Option<String>,
}

impl Unknown {
    fn finding(self, file: &str, place: &str) -> Finding {
        let Self {
            whose,
            path,
            nearest,
        } = self;
        let message = format!("{file}: {whose} has no key {path}");
        let finding = Finding::warning("key", message);
        let key = last(&path);
        match nearest {
            Some(nearest) => finding
                .impact(format!("It is ignored. Perhaps {nearest} was meant."))
                .fix(edit::rename(place, key, last(&nearest))),
            None => finding.impact("It is ignored."),
        }
    }
}

/// Finds misspelt keys of the list. Other unknown keys are ignored, because runtimes have keys of
/// their own.
fn of_list(network: &Network) -> Vec<Unknown> {
    let Some(document) = network.document.as_object() else {
        return Vec::new();
    };
    if !document.contains_key("plugins") {
        return Vec::new();
    }
    let mut unknown = unknown_in(("", document), LIST, "a list of plugins");
    unknown.retain(|it| it.nearest.is_some());
    unknown
}

fn of_plugin(source: Source<'_>) -> Vec<Unknown> {
    let program = source.plugin.program.as_str();
    let mut unknown = Vec::new();
    if let Some(keys) = schema::known_keys(program) {
        let own = keys.iter().map(String::as_str);
        let own = own.filter(|key| !key.starts_with(IPAM));
        let keys: Vec<_> = OF_ALL.iter().copied().chain(own).collect();
        unknown.extend(unknown_in(("", &source.plugin.config), &keys, program));
    }
    if let (Some(ipam), Some(program)) = (source.ipam(), source.ipam_type())
        && let Some(keys) = schema::known_keys(program)
    {
        let keys = keys.iter().filter_map(|key| key.strip_prefix(IPAM));
        let keys: Vec<_> = keys.collect();
        unknown.extend(unknown_in((IPAM, ipam), &keys, program));
    }
    unknown
}

/// Finds keys of `object`, whose path is `at`, that are not in `known`. It also checks nested
/// objects whose keys are known.
fn unknown_in(
    (at, object): (&str, &Map<String, Value>),
    known: &[&str],
    whose: &str,
) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    let is_of_runtime = |key: &str| key.starts_with("cni.dev/");
    for (key, value) in object.iter().filter(|(key, _)| !is_of_runtime(key)) {
        let Some(name) = known.iter().find(|it| it.eq_ignore_ascii_case(key)) else {
            let nearest = nearest(key, known).map(|it| format!("{at}{it}"));
            unknown.push(Unknown {
                whose: whose.to_owned(),
                path: format!("{at}{key}"),
                nearest,
            });
            continue;
        };
        let mut within = ((*name).to_owned(), vec![value]);
        // Objects in nested lists are checked like the list's own.
        while within.1.iter().any(|it| it.is_array()) {
            within.0.push_str("[]");
            within.1 = within
                .1
                .into_iter()
                .filter_map(Value::as_array)
                .flatten()
                .collect();
        }
        let prefix = format!("{}.", within.0);
        let inner: Vec<_> = known
            .iter()
            .filter_map(|it| it.strip_prefix(&prefix))
            .collect();
        if inner.is_empty() {
            continue;
        }
        let at = format!("{at}{prefix}");
        for object in within.1.into_iter().filter_map(Value::as_object) {
            unknown.extend(unknown_in((&at, object), &inner, whose));
        }
    }
    unknown.dedup();
    unknown
}

/// Returns the key in `known` that was most likely intended.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key = key.to_lowercase();
    let distance = |it: &str| strsim::osa_distance(&key, &it.to_lowercase());
    let names = known.iter().filter(|it| !it.contains('.'));
    let nearest = names.map(|it| (distance(it), *it)).min();
    let close = nearest.filter(|(distance, _)| *distance <= (key.len() / 3).max(1));
    close.map(|(_, name)| name)
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Keys of a list (SPEC.md, "Network configuration format").
const LIST: &[&str] = &[
    "cniVersion",
    "cniVersions",
    "name",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "plugins",
];

/// Keys of every plugin that the schema does not list: those that runtimes add, and those of a
/// list, which a single plugin may have.
const OF_ALL: &[&str] = &[
    "cniVersion",
    "name",
    "runtimeConfig",
    "prevResult",
    "ipam",
    "dns",
];

/// Path prefix of the IPAM plugin's keys.
const IPAM: &str = "ipam.";

#[cfg(test)]
mod tests;
