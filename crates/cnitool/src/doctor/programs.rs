//! Checks the plugins that networks name: they exist, can be run, and have the right version.

use std::path::Path;

use node::{Node, Program, Source};

use super::edit;
use super::finding::{Finding, Level, quoted};

/// Checks each plugin of each network.
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
    let (message, impact, fix) = fault(node, source, name)?;
    let message = format!("{}: plugin {message}", source.file.name);
    Some(
        Finding::new(level, SUBJECT, message)
            .impact(impact)
            .fix(fix),
    )
}

/// Returns a plugin's fault, its impact and its fix.
fn fault(node: &Node, source: Source<'_>, name: &str) -> Option<(String, &'static str, String)> {
    let path = &node.configuration.path;
    Some(match node.configuration.programs.get(name)? {
        Program::Missing => {
            let first = path.split(':').next().unwrap_or_default();
            let fix = format!(
                "install -m 755 {} {}",
                quoted(name),
                quoted(&format!("{first}/"))
            );
            (format!("{name} is not in {path}"), NO_ADD, fix)
        }
        Program::NotExecutable(program) => {
            let program = program.display();
            let fix = format!("chmod 755 {}", quoted(&program));
            (format!("{program} is not executable"), NO_ADD, fix)
        }
        Program::NotExecutableMount(program) => not_executable_mount(program),
        Program::Broken { path, reason } => {
            let path = path.display();
            let message = format!("{path} does not answer VERSION: {reason}");
            let fix = format!("CNI_COMMAND=VERSION {} </dev/null", quoted(&path));
            (
                message,
                "It is not a plugin, or is damaged: every ADD fails.",
                fix,
            )
        }
        Program::Found { versions, .. } => {
            return another_version(node, source, (name, versions.as_deref()?));
        }
    })
}

fn not_executable_mount(program: &Path) -> (String, &'static str, String) {
    let place = quoted(&program.display());
    let message = format!("{} is on a file system without exec", program.display());
    let fix = format!("mount -o remount,exec \"$(findmnt -no TARGET -T {place})\"");
    (message, NO_ADD, fix)
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
    let fix = edit::set(&place, "cniVersion", [version, newest]);
    let impact = "CRI-O ignores the network; with other runtimes, every ADD fails.";
    let message = format!("{name} does not support version {version}");
    Some((message, impact, fix))
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

    fn present(versions: &[&str]) -> Program {
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
        let findings = judged(present(&["1.0.0"]), silent());
        assert_eq!(levels(&findings), [Level::Ok]);
    }

    #[test]
    fn what_cannot_is_worse_in_the_network_that_is_taken() {
        let findings = judged(present(&["1.0.0"]), Program::Missing);
        assert_eq!(levels(&findings), [Level::Problem, Level::Warning]);
        assert_eq!(findings[0].fix, "install -m 755 host-local /opt/cni/bin/");
        let findings = judged(Program::NotExecutable("/b".into()), present(&["1.0.0"]));
        assert_eq!(findings[0].fix, "chmod 755 /b");
        let (path, reason) = ("/b".into(), "it ended".to_owned());
        let findings = judged(Program::Broken { path, reason }, present(&["1.0.0"]));
        assert_eq!(levels(&findings), [Level::Problem, Level::Warning]);
        let findings = judged(present(&["0.3.1", "0.4.0"]), present(&["1.0.0"]));
        assert!(findings[0].fix.contains("\"0.4.0\""), "{findings:?}");
    }
}
