//! The plugins that networks name: there, to be run, and of the right version.

use std::path::Path;

use node::{Node, Program, Source};

use super::edit;
use super::finding::{Finding, Level, quoted};

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
    let (found, means, mend) = fault(node, source, name)?;
    let found = format!("{}: plugin {found}", source.file.name);
    Some(Finding::new(level, SUBJECT, found).means(means).mend(mend))
}

/// What is wrong with a plugin, what that means, and what mends it.
fn fault(node: &Node, source: Source<'_>, name: &str) -> Option<(String, &'static str, String)> {
    let path = &node.configuration.path;
    Some(match node.configuration.programs.get(name)? {
        Program::Missing => {
            let first = path.split(':').next().unwrap_or_default();
            let mend = format!(
                "install -m 755 {} {}",
                quoted(name),
                quoted(&format!("{first}/"))
            );
            (format!("{name} is not in {path}"), NO_ADD, mend)
        }
        Program::NotExecutable(program) => {
            let program = program.display();
            let mend = format!("chmod 755 {}", quoted(&program));
            (format!("{program} is not executable"), NO_ADD, mend)
        }
        Program::NotExecutableMount(program) => not_executable_mount(program),
        Program::Broken { path, reason } => {
            let path = path.display();
            let found = format!("{path} does not answer VERSION: {reason}");
            let mend = format!("CNI_COMMAND=VERSION {} </dev/null", quoted(&path));
            (found, "It is no plugin, or damaged: no ADD succeeds.", mend)
        }
        Program::Found { versions, .. } => {
            return another_version(node, source, (name, versions.as_deref()?));
        }
    })
}

fn not_executable_mount(program: &Path) -> (String, &'static str, String) {
    let place = quoted(&program.display());
    let found = format!("{} is on a file system without exec", program.display());
    let mend = format!("mount -o remount,exec \"$(findmnt -no TARGET -T {place})\"");
    (found, NO_ADD, mend)
}

fn another_version(
    node: &Node,
    source: Source<'_>,
    (name, versions): (&str, &[String]),
) -> Option<(String, &'static str, String)> {
    let version = source.network.list.version.as_str();
    if versions.iter().any(|it| it == version) {
        return None;
    }
    let newest = versions.last().map_or("another one", String::as_str);
    let place = node.configuration.place(source.file);
    let mend = edit::set(&place, "cniVersion", [version, newest]);
    let means = "CRI-O leaves the network out, others fail at ADD.";
    let found = format!("{name} does not know version {version}");
    Some((found, means, mend))
}

const NO_ADD: &str = "Every ADD of this network fails.";

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
            is_ours: true,
        }
    }

    fn silent() -> Program {
        Program::Found {
            path: "/opt/cni/bin/plugin".into(),
            versions: None,
            is_ours: false,
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
        let (path, reason) = ("/b".into(), "it ended".to_owned());
        let findings = judged(Program::Broken { path, reason }, found(&["1.0.0"]));
        assert_eq!(levels(&findings), [Level::Problem, Level::Warning]);
        let findings = judged(found(&["0.3.1", "0.4.0"]), found(&["1.0.0"]));
        assert!(findings[0].mend.contains("\"0.4.0\""), "{findings:?}");
    }
}
