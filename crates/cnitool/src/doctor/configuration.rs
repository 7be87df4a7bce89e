//! Checks the configuration files: whether they are valid, and which one the runtime uses.

use std::collections::BTreeMap;
use std::path::Path;

use cni::{SpecVersion, Verb};
use node::{Configuration, File, Network, Node};
use serde_json::Value;

use super::edit;
use super::finding::{Finding, Level, quoted};

/// Reports whether each configuration file is valid and has the extension for its content, and
/// which network names several files configure. Also reports if there is no file.
pub fn judge(node: &Node) -> Vec<Finding> {
    let configuration = &node.configuration;
    let files = configuration.files.iter();
    let each = files.map(|file| match &file.network {
        Err(reason) => broken(configuration, file, reason),
        Ok(network) => misnamed(configuration, file, network)
            .or_else(|| unsupported(node, file, network))
            .unwrap_or_else(|| sound(node, file, network)),
    });
    let absent = configuration.files.is_empty().then(|| none(configuration));
    let findings = absent.into_iter().chain(each);
    findings.chain(several(configuration)).collect()
}

fn none(configuration: &Configuration) -> Finding {
    let directory = configuration.directory.display();
    let file = quoted(&format!("{directory}/10-NETWORK.conflist"));
    let impact =
        "Runtimes report that the CNI plugin is not initialized, and the node stays NotReady.";
    Finding::problem(format!("no network in {directory}"))
        .impact(impact)
        .fix(format!("install -D -m 644 NETWORK.conflist {file}"))
}

fn broken(configuration: &Configuration, file: &File, reason: &str) -> Finding {
    let message = format!("{}: {}", file.name, reason.trim_start_matches("decode: "));
    let line = line_of(reason).map_or_else(String::new, |line| format!("+{line} "));
    let fix = format!("vi {line}{}", quoted(&configuration.place(file)));
    let first = configuration.files.first();
    if first.is_some_and(|it| it.name == file.name) {
        let impact = "It is the first file. containerd stops at it, so no pod gets a network; CRI-O \
                     uses the next file.";
        return Finding::problem(message).impact(impact).fix(fix);
    }
    let impact =
        "This network cannot be used. If containerd loads several networks, it stops at this one.";
    Finding::warning(message).impact(impact).fix(fix)
}

/// Returns the highest version that the node's runtime supports: 1.0.0 if its release is not known.
pub fn highest(node: &Node) -> SpecVersion {
    if node.containerd.as_deref().is_some_and(supports_newest) {
        SpecVersion::CURRENT
    } else {
        SpecVersion::V1_0_0
    }
}

/// Returns a finding if the containerd of this node does not support the version of the list.
fn unsupported(node: &Node, file: &File, network: &Network) -> Option<Finding> {
    let (containerd, version) = (node.containerd.as_deref()?, network.list.version);
    if supports_newest(containerd) || !is_too_new(network) {
        return None;
    }
    let message = format!(
        "{}: containerd {containerd} does not support version {version}",
        file.name
    );
    let finding = Finding::new(Level::of_file(node, &file.name), message);
    let impact = "Its pods fail with \"unsupported CNI result version\". With 1.0.0, containerd calls neither \
                  STATUS nor GC, which it does not know.";
    let place = node.configuration.place(file);
    let fix = edit::set(&place, "cniVersion", [version.as_str(), "1.0.0"]);
    Some(finding.impact(impact).fix(fix))
}

/// Returns whether this version of containerd supports 1.1.0 of the specification: 2.0 and later do
/// (libcni 1.2.3), 1.7 and earlier do not (libcni 1.1.2). Returns `true` for an unknown version.
fn supports_newest(containerd: &str) -> bool {
    let major = containerd.split('.').next().unwrap_or_default();
    !major.parse::<u32>().is_ok_and(|it| it < 2)
}

/// Returns whether runtimes of libcni 1.1 and earlier use a version that they do not support. They do
/// not know the key `cniVersions`, and use the version in `cniVersion`.
fn is_too_new(network: &Network) -> bool {
    let version = network.list.version;
    let single = network.document.get("cniVersion").and_then(Value::as_str);
    version >= Verb::Status.since() && single == Some(version.as_str())
}

fn sound(node: &Node, file: &File, network: &Network) -> Finding {
    let configuration = &node.configuration;
    let (name, version) = (&network.list.name, network.list.version);
    let message = format!("{}: network {name}, version {version}", file.name);
    let chosen = configuration.chosen();
    if chosen.is_none_or(|it| it.name != file.name) {
        return Finding::ok(message);
    }
    let finding = Finding::ok(format!("{message}, which the runtime uses"));
    if version < Verb::Status.since() {
        let newest = SpecVersion::CURRENT;
        return finding.impact(format!("Version {newest} would add STATUS and GC."));
    }
    if node.containerd.is_some() || !is_too_new(network) {
        return finding;
    }
    finding.impact(
        "containerd 1 and other runtimes of that time support no version after 1.0.0: their pods fail with \
         \"unsupported CNI result version\".",
    )
}

/// Returns a finding if the extension of `file` does not match its content: a list of plugins needs
/// `.conflist`, a single plugin another extension, such as `.conf`.
fn misnamed(configuration: &Configuration, file: &File, network: &Network) -> Option<Finding> {
    let (is, extension) = if is_list(network) {
        ("a list of plugins", "conflist")
    } else {
        ("a single plugin", "conf")
    };
    let renamed = Path::new(&file.name).with_extension(extension);
    let mut others = configuration.files.iter();
    let is_taken = others.any(|it| Path::new(&it.name) == renamed);
    let renamed = if is_taken {
        disabled(&file.name)
    } else {
        renamed.display().to_string()
    };
    (is_list(network) != file.is_list()).then(|| {
        Finding::problem(format!("{}: it contains {is}", file.name))
            .impact("Runtimes use the file name's extension, and reject this file.")
            .fix(rename(configuration, [&file.name, &renamed]))
    })
}

fn is_list(network: &Network) -> bool {
    network.document.get("plugins").is_some()
}

/// Returns the command that renames a configuration file, but never replaces another file.
fn rename(configuration: &Configuration, names: [&str; 2]) -> String {
    let directory = configuration.directory.display();
    let [from, to] = names.map(|it| quoted(&format!("{directory}/{it}")));
    format!("mv -n {from} {to}")
}

/// Returns a name with which runtimes do not read the file `name`.
fn disabled(name: &str) -> String {
    format!("{name}.disabled")
}

/// Finds network names that several files configure. The runtime uses the first file. A file with the
/// wrong extension does not count, because runtimes reject it.
fn several(configuration: &Configuration) -> Vec<Finding> {
    let mut files = BTreeMap::<&str, Vec<&File>>::new();
    let networks = configuration.networks();
    for (file, network) in networks.filter(|(file, it)| is_list(it) == file.is_list()) {
        let same = files.entry(network.list.name.as_str()).or_default();
        same.push(file);
    }
    let several = files.into_iter().filter(|(_, files)| files.len() > 1);
    let findings = several.filter_map(|(name, files)| {
        let names: Vec<_> = files.iter().map(|it| it.name.as_str()).collect();
        let message = format!("network {name} is in {}", names.join(" and "));
        let impact = "They share leases and attachments, and DEL may use the wrong one.";
        let last = &files.last()?.name;
        let fix = rename(configuration, [last, &disabled(last)]);
        Some(Finding::warning(message).impact(impact).fix(fix))
    });
    findings.collect()
}

/// Returns the line number in an error of the JSON parser: `… at line 4 column 3`. Returns `None`
/// if the error has no line number.
fn line_of(reason: &str) -> Option<u32> {
    let (_, rest) = reason.rsplit_once(" at line ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{levels, node};
    use super::*;

    const LIST: &str =
        r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;

    #[test]
    fn no_file_at_all_is_a_problem() {
        let findings = judge(&node(&[]));
        assert_eq!(levels(&findings), [Level::Problem]);
    }

    #[test]
    fn mistakes_in_json_are_reported_with_line_and_column() {
        let text = "{\"cniVersion\": \"1.0.0\",\n \"name\": \"pods\"\n \"plugins\": []}";
        let [finding, other] = judge(&node(&[("10-a.conflist", text), ("20-b.conflist", LIST)]))
            .try_into()
            .unwrap();
        let finding: Finding = finding;
        assert_eq!(finding.level, Level::Problem);
        assert_eq!(
            finding.message,
            "10-a.conflist: expected `,` or `}` at line 3 column 2"
        );
        assert!(finding.fix.starts_with("vi +3 "), "{finding:?}");
        let other: Finding = other;
        assert!(!other.message.contains("the runtime uses"), "{other:?}");
    }

    #[test]
    fn the_first_by_name_is_the_one_that_is_taken() {
        let other = LIST.replace("pods", "others");
        let findings = judge(&node(&[("10-a.conflist", LIST), ("20-b.conflist", &other)]));
        assert_eq!(levels(&findings), [Level::Ok, Level::Ok]);
        assert!(findings[0].message.ends_with("which the runtime uses"));
        assert!(findings[1].message.ends_with("version 1.1.0"));
    }

    #[test]
    fn limits_of_older_runtimes_are_reported() {
        let impact = |version: &str| {
            let list = LIST.replace(r#""cniVersion": "1.1.0""#, version);
            judge(&node(&[("a.conflist", &list)]))[0].impact.clone()
        };
        assert!(impact(r#""cniVersion": "1.1.0""#).starts_with("containerd 1 "));
        assert!(impact(r#""cniVersion": "1.0.0""#).starts_with("Version 1.1.0 would add"));
        let both = r#""cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]"#;
        assert_eq!(impact(both), "");
    }

    #[test]
    fn unknown_versions_wrong_names_and_duplicates_are_reported() {
        for (file, text, message) in [
            (
                "a.conflist",
                LIST.replace("1.1.0", "1.0"),
                "a.conflist: cniVersion",
            ),
            (
                "a.conf",
                LIST.to_owned(),
                "a.conf: it contains a list of plugins",
            ),
            (
                "a.conflist",
                LIST.replace("bridge", ""),
                "a.conflist: plugins[0]: type",
            ),
        ] {
            let findings = judge(&node(&[(file, &text)]));
            assert_eq!(levels(&findings), [Level::Problem], "{file}");
            assert!(findings[0].message.starts_with(message), "{findings:?}");
        }
        let findings = judge(&node(&[("1.conflist", LIST), ("2.conflist", LIST)]));
        assert_eq!(levels(&findings), [Level::Ok, Level::Ok, Level::Warning]);
        assert_eq!(
            findings[2].message,
            "network pods is in 1.conflist and 2.conflist"
        );
    }
}
