//! The files of the configuration: which make sense, and which of them the runtime takes.

use std::collections::BTreeMap;

use cni::{SpecVersion, Verb};
use node::{Configuration, File, Network, Node};
use serde_json::Value;

use super::finding::{Finding, Level, quoted};

/// Of each file, and of all together.
pub fn judge(node: &Node) -> Vec<Finding> {
    let configuration = &node.configuration;
    let mut findings = Vec::new();
    if configuration.files.is_empty() {
        findings.push(none(configuration));
    }
    for (place, file) in configuration.files.iter().enumerate() {
        match &file.network {
            Err(reason) => findings.push(broken(configuration, (place, file), reason)),
            Ok(network) => findings.push(sound(configuration, file, network)),
        }
    }
    findings.extend(several(configuration));
    findings
}

fn none(configuration: &Configuration) -> Finding {
    let directory = configuration.directory.display();
    let file = quoted(&format!("{directory}/10-NETWORK.conflist"));
    Finding::problem(SUBJECT, format!("no network in {directory}"))
        .means("Runtimes say that the CNI plugin is not initialized; the node stays NotReady.")
        .mend(format!("install -D -m 644 NETWORK.conflist {file}"))
}

fn broken(configuration: &Configuration, (place, file): (usize, &File), reason: &str) -> Finding {
    let found = format!("{}: {}", file.name, reason.trim_start_matches("decode: "));
    let line = line_of(reason).map_or_else(String::new, |line| format!("+{line} "));
    let mend = format!("vi {line}{}", quoted(&configuration.place(file)));
    if place == 0 {
        let means = "It comes first. containerd stops at it, and no pod gets a network; CRI-O \
                     takes the next file.";
        return Finding::problem(SUBJECT, found).means(means).mend(mend);
    }
    let means = "Nobody can use this network. Where several are taken, containerd stops at it.";
    Finding::warning(SUBJECT, found).means(means).mend(mend)
}

fn sound(configuration: &Configuration, file: &File, network: &Network) -> Finding {
    if let Some(finding) = misnamed(configuration, file, network) {
        return finding;
    }
    let (name, version) = (&network.list.name, network.list.version);
    let found = format!("{}: network {name}, version {version}", file.name);
    let chosen = configuration.chosen();
    if chosen.is_none_or(|it| it.name != file.name) {
        return Finding::ok(SUBJECT, found);
    }
    let finding = Finding::ok(SUBJECT, format!("{found}, which the runtime takes"));
    if version < Verb::Status.since() {
        let newest = SpecVersion::CURRENT;
        return finding.means(format!("Version {newest} would add STATUS and GC."));
    }
    // Runtimes of before `cniVersions` do not see what stands there.
    let single = network.document.get("cniVersion").and_then(Value::as_str);
    if single != Some(version.as_str()) {
        return finding;
    }
    finding.means(
        "containerd 1.6 and others of its time know no version after 1.0.0: their pods fail with \
         \"unsupported CNI result version\".",
    )
}

/// The end of its name promises something else than the file holds.
fn misnamed(configuration: &Configuration, file: &File, network: &Network) -> Option<Finding> {
    let is_document_of_list = network.document.get("plugins").is_some();
    let (is, extension) = if is_document_of_list {
        ("a list of plugins", "conflist")
    } else {
        ("a single plugin", "conf")
    };
    let place = configuration.place(file);
    let stem = place
        .rsplit_once('.')
        .map_or(place.as_str(), |(stem, _)| stem);
    let renamed = quoted(&format!("{stem}.{extension}"));
    (is_document_of_list != file.is_list()).then(|| {
        Finding::problem(SUBJECT, format!("{}: it holds {is}", file.name))
            .means("Runtimes go by the end of the name, and refuse it.")
            .mend(format!("mv {} {renamed}", quoted(&place)))
    })
}

/// Files that bear the same name for a network, of which the first is used.
fn several(configuration: &Configuration) -> Vec<Finding> {
    let mut files = BTreeMap::<&str, Vec<&str>>::new();
    for file in &configuration.files {
        if let Ok(network) = &file.network {
            let same = files.entry(network.list.name.as_str()).or_default();
            same.push(&file.name);
        }
    }
    let several = files.into_iter().filter(|(_, files)| files.len() > 1);
    let finding = |(name, files): (&str, Vec<&str>)| {
        let found = format!("network {name} is in {}", files.join(" and "));
        let means = "They share leases and attachments, and DEL may go by the wrong one.";
        let last = files.last().map(|it| configuration.directory.join(it));
        let last = last.unwrap_or_default().display().to_string();
        let aside = quoted(&format!("{last}.disabled"));
        Finding::new(Level::Warning, SUBJECT, found)
            .means(means)
            .mend(format!("mv {} {aside}", quoted(&last)))
    };
    several.map(finding).collect()
}

/// The line in the words of the JSON reader: `… at line 4 column 3`.
fn line_of(reason: &str) -> Option<u32> {
    let (_, rest) = reason.rsplit_once(" at line ")?;
    rest.split(' ').next()?.parse().ok()
}

const SUBJECT: &str = "conflist";

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
    fn mistakes_in_json_are_told_by_line_and_column() {
        let text = "{\"cniVersion\": \"1.0.0\",\n \"name\": \"pods\"\n \"plugins\": []}";
        let [finding, other] = judge(&node(&[("10-a.conflist", text), ("20-b.conflist", LIST)]))
            .try_into()
            .unwrap();
        let finding: Finding = finding;
        assert_eq!(finding.level, Level::Problem);
        assert_eq!(
            finding.found,
            "10-a.conflist: expected `,` or `}` at line 3 column 2"
        );
        assert!(finding.mend.starts_with("vi +3 "), "{finding:?}");
        let other: Finding = other;
        assert!(!other.found.contains("runtime takes"), "{other:?}");
    }

    #[test]
    fn the_first_by_name_is_the_one_that_is_taken() {
        let other = LIST.replace("pods", "others");
        let findings = judge(&node(&[("10-a.conflist", LIST), ("20-b.conflist", &other)]));
        assert_eq!(levels(&findings), [Level::Ok, Level::Ok]);
        assert!(findings[0].found.ends_with("which the runtime takes"));
        assert!(findings[1].found.ends_with("version 1.1.0"));
    }

    #[test]
    fn what_older_runtimes_make_of_the_version_is_told() {
        let means = |version: &str| {
            let list = LIST.replace(r#""cniVersion": "1.1.0""#, version);
            judge(&node(&[("a.conflist", &list)]))[0].means.clone()
        };
        assert!(means(r#""cniVersion": "1.1.0""#).starts_with("containerd 1.6 "));
        assert!(means(r#""cniVersion": "1.0.0""#).starts_with("Version 1.1.0 would add"));
        let both = r#""cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]"#;
        assert_eq!(means(both), "");
    }

    #[test]
    fn unknown_versions_wrong_names_and_doubles_are_told() {
        for (file, text, found) in [
            (
                "a.conflist",
                LIST.replace("1.1.0", "1.0"),
                "a.conflist: cniVersion",
            ),
            (
                "a.conf",
                LIST.to_owned(),
                "a.conf: it holds a list of plugins",
            ),
            (
                "a.conflist",
                LIST.replace("bridge", ""),
                "a.conflist: plugins[0]: type",
            ),
        ] {
            let findings = judge(&node(&[(file, &text)]));
            assert_eq!(levels(&findings), [Level::Problem], "{file}");
            assert!(findings[0].found.starts_with(found), "{findings:?}");
        }
        let findings = judge(&node(&[("1.conflist", LIST), ("2.conflist", LIST)]));
        assert_eq!(levels(&findings), [Level::Ok, Level::Ok, Level::Warning]);
        assert_eq!(
            findings[2].found,
            "network pods is in 1.conflist and 2.conflist"
        );
    }
}
