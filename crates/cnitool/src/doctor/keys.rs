//! Checks for unknown keys and probable mistakes. Suggests the known key that was probably meant.

use node::{ConfigWarning, Network, Node, Source};
use serde_json::{Map, Value};

use super::edit;
use super::finding::{Finding, Level};

/// Finds unknown keys in each list of plugins, and unknown keys and probable mistakes in the
/// configuration of each plugin and IPAM plugin of this suite.
pub fn judge(node: &Node) -> Vec<Finding> {
    let networks = node.configuration.networks();
    let lists = networks.map(|(file, network)| (file, of_list(network)));
    let sources = node.configuration.sources();
    let plugins = sources.map(|it| (it.file, of_plugin(it)));
    let findings = lists.chain(plugins).flat_map(|(file, unknown)| {
        let place = node.configuration.place(file);
        let finding = move |it: Unknown| it.finding(&file.name, &place);
        unknown.into_iter().map(finding)
    });
    let warnings = node.configuration.sources().flat_map(|source| {
        let warnings = node::warnings(source.plugin).into_iter();
        warnings.map(move |it| warning(node, source, &it))
    });
    findings.chain(warnings).collect()
}

fn warning(node: &Node, source: Source<'_>, warning: &ConfigWarning) -> Finding {
    let file = &source.file.name;
    let message = format!("{file}: {}: {}", warning.plugin, warning.message);
    let finding = if warning.is_fatal {
        let finding = Finding::new(Level::of_file(node, file), message);
        finding.impact("Every ADD of this network fails.")
    } else {
        Finding::warning(message)
    };
    finding.fix(edit::open(&source.place()))
}

#[derive(Debug, PartialEq, Eq)]
struct Unknown {
    /// Text for the object that has the unknown key: `a list of plugins`, or the name of a plugin.
    whose: String,
    /// The path of the unknown key, such as `ipam.ranges[][].subnetz`.
    path: String,
    /// The path of the known key that was probably meant; `None` if no known key is similar.
    nearest: Option<String>,
}

impl Unknown {
    fn finding(self, file: &str, place: &str) -> Finding {
        let message = format!("{file}: {} has no key {}", self.whose, self.path);
        let finding = Finding::warning(message);
        match self.nearest {
            Some(nearest) => finding
                .impact(format!("It is ignored. Perhaps {nearest} was meant."))
                .fix(edit::rename(place, last(&self.path), last(&nearest))),
            None => finding.impact("It is ignored."),
        }
    }
}

/// Finds keys of the list that resemble a known key. Other unknown keys are not reported, because
/// runtimes have keys of their own.
fn of_list(network: &Network) -> Vec<Unknown> {
    let document = network.document.as_object();
    let Some(document) = document.filter(|it| it.contains_key("plugins")) else {
        return Vec::new();
    };
    let known = LIST.iter().map(|it| ((*it).to_owned(), Value::Null));
    let mut unknown = unknown_in("", document, &known.collect(), "a list of plugins");
    unknown.retain(|it| it.nearest.is_some());
    unknown
}

fn of_plugin(source: Source<'_>) -> Vec<Unknown> {
    let (plugin, program) = (source.plugin, source.plugin.program.as_str());
    let mut unknown = Vec::new();
    if let Some(mut keys) = schema::known_keys(program) {
        for key in cni::COMMON_KEYS {
            keys.entry(*key).or_insert(Value::Null);
        }
        // The IPAM plugin defines the keys in this section, so they are checked below.
        keys.insert("ipam".to_owned(), Value::Null);
        unknown.extend(unknown_in("", &plugin.config, &keys, program));
    }
    if let Some((ipam, program)) = plugin.ipam().zip(plugin.ipam_type())
        && let Some(keys) = schema::known_keys(program)
    {
        unknown.extend(unknown_in("ipam.", ipam, &keys, program));
    }
    unknown
}

/// Finds keys of `object` that are not in `known`. `at` is the path of `object`. `known` has the
/// JSON Schema of each known key. If the schema of a key lists the keys of a nested object, checks
/// the nested object, too.
fn unknown_in(
    at: &str,
    object: &Map<String, Value>,
    known: &Map<String, Value>,
    whose: &str,
) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    let is_of_runtime = |key: &str| key.starts_with("cni.dev/");
    for (key, value) in object.iter().filter(|(key, _)| !is_of_runtime(key)) {
        let Some((name, schema)) = known.iter().find(|it| it.0.eq_ignore_ascii_case(key)) else {
            unknown.push(Unknown {
                whose: whose.to_owned(),
                path: format!("{at}{key}"),
                nearest: nearest(key, known).map(|it| format!("{at}{it}")),
            });
            continue;
        };
        let (mut at, mut schema, mut within) = (format!("{at}{name}"), schema, vec![value]);
        // Objects in a list of lists are checked like objects in a list.
        while let Some(items) = schema.get("items") {
            (at, schema) = (at + "[]", items);
            let lists = within.into_iter().filter_map(Value::as_array);
            within = lists.flatten().collect();
        }
        if let Some(known) = schema.get("properties").and_then(Value::as_object) {
            let objects = within.into_iter().filter_map(Value::as_object);
            let inner = objects.flat_map(|it| unknown_in(&format!("{at}."), it, known, whose));
            unknown.extend(inner);
        }
    }
    unknown.dedup();
    unknown
}

/// Returns the key in `known` that was most likely meant; `None` if no key is similar.
fn nearest<'k>(key: &str, known: &'k Map<String, Value>) -> Option<&'k str> {
    let key = key.to_lowercase();
    let distance = |it: &str| strsim::osa_distance(&key, &it.to_lowercase());
    let (distance, name) = known.keys().map(|it| (distance(it), it)).min()?;
    (distance <= (key.len() / 3).max(1)).then_some(name)
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Keys of a list of plugins (SPEC.md, "Network configuration format").
const LIST: &[&str] = &[
    "cniVersion",
    "cniVersions",
    "name",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "plugins",
];

#[cfg(test)]
mod tests;
