//! The plugins that networks name: there, to be run, and of the right version.

use super::finding::{Finding, Level};
use crate::node::{Node, Program, Source};

/// Of each plugin of each network.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in node.configuration.sources() {
        for name in source.programs() {
            findings.extend(finding(node, source, name));
        }
    }
    if findings.is_empty() && !node.configuration.programs.is_empty() {
        let names: Vec<_> = node.configuration.programs.keys().cloned().collect();
        findings.push(Finding::ok(
            SUBJECT,
            format!("{} can be run", names.join(", ")),
        ));
    }
    findings
}

fn finding(node: &Node, source: Source<'_>, name: &str) -> Option<Finding> {
    let level = if node.configuration.is_chosen(source) {
        Level::Problem
    } else {
        Level::Warning
    };
    let (file, path) = (&source.file.name, &node.configuration.path);
    let first = path.split(':').next().unwrap_or_default();
    let finding = |found: String| Finding::new(level, SUBJECT, found);
    match node.configuration.programs.get(name)? {
        Program::Missing => Some(
            finding(format!("{file}: plugin {name} is not in {path}"))
                .means("Every ADD of this network fails.")
                .mend(format!("install -m 755 {name} {first}/")),
        ),
        Program::NotExecutable(program) => Some(
            finding(format!(
                "{file}: plugin {} is not executable",
                program.display()
            ))
            .means("Every ADD of this network fails.")
            .mend(format!("chmod 755 {}", program.display())),
        ),
        Program::Found { versions, .. } => {
            let version = source.network.list.version.as_str();
            let versions = versions.as_ref()?;
            if versions.iter().any(|it| it == version) {
                return None;
            }
            let newest = versions.last().map_or("another one", String::as_str);
            let place = node.configuration.place(source.file);
            Some(
                finding(format!("{file}: plugin {name} does not know version {version}"))
                    .means("CRI-O leaves the network out, others fail at ADD.")
                    .mend(format!(
                        "sed -i 's/\"cniVersion\": *\"{version}\"/\"cniVersion\": \"{newest}\"/' {place}"
                    )),
            )
        }
    }
}

const SUBJECT: &str = "plugin";

#[cfg(test)]
mod tests {
    use super::super::tests::{levels, node};
    use super::*;

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}}]}"#;

    fn judged(bridge: Program, ipam: Program) -> Vec<Finding> {
        let mut node = node(&[("10-pods.conflist", LIST), ("20-pods.conflist", LIST)]);
        node.configuration.path = "/opt/cni/bin:/usr/lib/cni".to_owned();
        let programs = [("bridge", bridge), ("host-local", ipam)];
        let programs = programs.map(|(name, program)| (name.to_owned(), program));
        node.configuration.programs = programs.into();
        judge(&node)
    }

    fn found(versions: &[&str]) -> Program {
        let versions = versions.iter().map(|it| (*it).to_owned()).collect();
        Program::Found {
            path: "/opt/cni/bin/plugin".into(),
            versions: Some(versions),
        }
    }

    fn silent() -> Program {
        Program::Found {
            path: "/opt/cni/bin/plugin".into(),
            versions: None,
        }
    }

    #[test]
    fn what_can_be_run_is_well() {
        let findings = judged(found(&["1.0.0"]), silent());
        assert_eq!(levels(&findings), [Level::Ok]);
    }

    #[test]
    fn what_cannot_is_worse_in_the_network_that_is_taken() {
        let findings = judged(found(&["1.0.0"]), Program::Missing);
        assert_eq!(levels(&findings), [Level::Problem, Level::Warning]);
        assert_eq!(findings[0].mend, "install -m 755 host-local /opt/cni/bin/");
        let findings = judged(Program::NotExecutable("/b".into()), found(&["1.0.0"]));
        assert_eq!(findings[0].mend, "chmod 755 /b");
        let findings = judged(found(&["0.3.1", "0.4.0"]), found(&["1.0.0"]));
        assert!(findings[0].mend.contains("\"0.4.0\""), "{findings:?}");
    }
}
