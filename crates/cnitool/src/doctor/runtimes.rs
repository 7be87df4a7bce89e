//! Checks which plugins the container runtimes execute: those that doctor checked, or others of the
//! same names from another directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use node::{ContainerRuntime, Lookup, Node, Program};

use super::edit;
use super::finding::{Finding, Level, or_ok, some_of};

/// Reports runtimes that execute other plugins than those of `CNI_PATH`, or find none, and runtimes
/// whose configuration is invalid.
pub fn judge(node: &Node) -> Vec<Finding> {
    let runtimes = node.container_runtimes.iter();
    let findings = runtimes.flat_map(|runtime| match &runtime.lookup {
        Ok(lookup) => of_lookup(node, runtime, lookup),
        Err(reason) => {
            let impact = "doctor cannot see which plugins it executes.";
            let finding = Finding::warning(format!("{}: {reason}", runtime.name));
            vec![finding.impact(impact)]
        }
    });
    let names: Vec<_> = node.container_runtimes.iter().map(|it| it.name).collect();
    let ok = || format!("the checked plugins are executed by {}", names.join(", "));
    let is_compared = !names.is_empty() && own_directory(node).is_some();
    or_ok(findings, is_compared.then(ok))
}

fn of_lookup(node: &Node, runtime: &ContainerRuntime, lookup: &Lookup) -> Vec<Finding> {
    let Some(directory) = own_directory(node).map(Path::display) else {
        return Vec::new();
    };
    let name = runtime.name;
    let others: Vec<_> = lookup.others.values().flatten().collect();
    let missing = lookup.others.iter().filter(|(_, found)| found.is_none());
    let missing: Vec<_> = missing.map(|(plugin, _)| plugin).collect();
    let advice = format!(
        "Put {directory} first in {}, which {name} reads when it starts.",
        lookup.key
    );
    let fix = edit::open(&lookup.file.display().to_string());
    let finding = |level, message: String, impact: &str| {
        let finding = Finding::new(level, message);
        finding.impact(format!("{impact} {advice}")).fix(&fix)
    };
    let mut findings = Vec::new();
    if !others.is_empty() {
        let others = some_of(others.iter().map(|it| it.display()));
        let message = format!("{name} executes {others}, not the plugins of {directory}");
        let impact = "They attach its pods.";
        findings.push(finding(Level::Warning, message, impact));
    }
    if !missing.is_empty() {
        let directories = some_of(lookup.directories.iter().map(|it| it.display()));
        let message = format!("{name} finds no {} in {directories}", some_of(missing));
        let impact = "Its ADDs of networks with these plugins fail.";
        findings.push(finding(level_of_missing(node), message, impact));
    }
    findings
}

/// Returns the level if a runtime does not find a plugin: a problem if the node has no other
/// runtime, which may be the one that attaches the pods.
fn level_of_missing(node: &Node) -> Level {
    match node.container_runtimes.len() {
        1 => Level::Problem,
        _ => Level::Warning,
    }
}

/// Returns the directory of this suite's plugins in `CNI_PATH`; `None` if no network names one.
fn own_directory(node: &Node) -> Option<&Path> {
    let programs: &BTreeMap<String, Program> = &node.configuration.programs;
    let path = programs.values().find_map(|program| match program {
        Program::Found {
            path,
            is_ours: true,
            ..
        } => Some(path),
        _ => None,
    });
    path.and_then(|it: &PathBuf| it.parent())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{levels, node};
    use super::*;

    fn node_with(others: &[(&str, Option<&str>)], reasons: &[&str]) -> Node {
        let mut node = node(&[]);
        let bridge = Program::Found {
            path: "/opt/cni/bin/bridge".into(),
            versions: None,
            is_ours: true,
        };
        node.configuration.programs = [("bridge".to_owned(), bridge)].into();
        let others = others.iter();
        let others = others.map(|(name, path)| ((*name).to_owned(), path.map(PathBuf::from)));
        let lookup = Lookup {
            directories: vec!["/usr/lib/cni".into()],
            others: others.collect(),
            ..Lookup::default()
        };
        let invalid = reasons.iter().map(|it| Err((*it).to_owned()));
        let lookups = [Ok(lookup)].into_iter().chain(invalid);
        let runtime = |lookup| ContainerRuntime {
            name: "containerd",
            lookup,
        };
        node.container_runtimes = lookups.map(runtime).collect();
        node
    }

    #[test]
    fn a_missing_plugin_is_a_problem_of_the_only_runtime() {
        let missing = [("bridge", None), ("portmap", Some("/usr/lib/cni/portmap"))];
        let findings = judge(&node_with(&missing, &[]));
        assert_eq!(levels(&findings), [Level::Warning, Level::Problem]);
        let findings = judge(&node_with(&missing, &["line 1"]));
        assert_eq!(levels(&findings), [Level::Warning; 3]);
        assert_eq!(levels(&judge(&node_with(&[], &[]))), [Level::Ok]);
    }
}
