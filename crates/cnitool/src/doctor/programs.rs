//! Checks the plugins that networks name: they exist, can be run, and support the version of the
//! network's configuration.

use cni::SpecVersion;
use node::{Configuration, Network, Node, Program, Source};
use runtime::PluginConfig;

use super::configuration::highest;
use super::edit;
use super::finding::{Finding, Level, or_ok, quoted};

/// Reports plugins of networks that are missing, cannot be run, or do not support the version of
/// their network's configuration.
pub fn judge(node: &Node) -> Vec<Finding> {
    let sources = node.configuration.sources();
    let findings = sources.flat_map(|source| {
        let names = source.plugin.programs();
        names.filter_map(move |name| finding(node, source, name))
    });
    let names: Vec<_> = node.configuration.programs.keys().cloned().collect();
    let ok = || format!("{} can be run", names.join(", "));
    or_ok(findings, (!names.is_empty()).then(ok))
}

fn finding(node: &Node, source: Source<'_>, name: &str) -> Option<Finding> {
    let (configuration, file) = (&node.configuration, &source.file.name);
    let finding = |message: String| fault(node, file, &message);
    Some(match configuration.programs.get(name)? {
        Program::Missing => {
            let fix = format!("install -m 755 {} {}", quoted(name), first(configuration));
            finding(format!("{name} is not in {}", configuration.path)).fix(fix)
        }
        Program::NotExecutable(program) => {
            let fix = format!("chmod 755 {}", quoted(&program.display()));
            finding(format!("{} is not executable", program.display())).fix(fix)
        }
        Program::NotExecutableMount(program) => {
            let place = quoted(&program.display());
            let message = format!("{} is on a file system without exec", program.display());
            let mount = format!("findmnt -no TARGET -T {place}");
            finding(message).fix(format!("mount -o remount,exec \"$({mount})\""))
        }
        Program::Broken { path, reason } => {
            let path = path.display();
            let fix = format!("CNI_COMMAND=VERSION {} </dev/null", quoted(&path));
            let finding = finding(format!("{path} does not answer VERSION: {reason}")).fix(fix);
            finding.impact("It is not a plugin, or is damaged: every ADD fails.")
        }
        Program::Found { versions, .. } => {
            let (version, versions) = (source.network.list.version.as_str(), versions.as_ref()?);
            if versions.iter().any(|it| it == version) {
                return None;
            }
            let finding = finding(format!("{name} does not support version {version}"));
            with_other_version(node, source, finding)
        }
    })
}

/// Returns `finding` with a fix that gives the network a version that its plugins support.
fn with_other_version(node: &Node, source: Source<'_>, finding: Finding) -> Finding {
    let (network, place) = (source.network, source.place());
    let version = network.list.version.as_str();
    let impact = "CRI-O ignores the network; with other runtimes, every ADD fails.";
    if network.document.get("cniVersions").is_some() {
        let impact = format!("{impact} Write cniVersions without {version}.");
        return finding.impact(impact).fix(edit::open(&place));
    }
    let fix = match common(node, network) {
        Some(common) => edit::set(&place, "cniVersion", [version, common]),
        None => edit::open(&place),
    };
    finding.impact(impact).fix(fix)
}

/// Returns the highest version that the runtime and all plugins of the network support. A plugin that
/// reports no versions may support any.
fn common(node: &Node, network: &Network) -> Option<&'static str> {
    let is_common = |version: &str| {
        let mut programs = network.plugins.iter().flat_map(PluginConfig::programs);
        programs.all(|it| match node.configuration.programs.get(it) {
            Some(Program::Found {
                versions: Some(own),
                ..
            }) => own.iter().any(|it| it == version),
            _ => true,
        })
    };
    let versions = SpecVersion::ALL.iter().rev();
    let versions = versions.filter(|it| **it <= highest(node));
    versions.map(|it| it.as_str()).find(|it| is_common(it))
}

/// Returns a finding about an unusable plugin of the network in `file`. No ADD succeeds without the
/// plugin.
fn fault(node: &Node, file: &str, message: &str) -> Finding {
    let message = format!("{file}: plugin {message}");
    let finding = Finding::new(Level::of_file(node, file), message);
    finding.impact("Every ADD of this network fails.")
}

/// Returns the first directory of `CNI_PATH`, into which a fix installs a missing plugin. The
/// directory is quoted for a shell.
fn first(configuration: &Configuration) -> String {
    let first = configuration.path.split(':').next().unwrap_or_default();
    quoted(&format!("{first}/"))
}

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
    }

    #[test]
    fn a_version_that_all_plugins_and_any_runtime_support_is_the_fix() {
        let fix = |bridge: &[&str], ipam: Program| judged(present(bridge), ipam)[0].fix.clone();
        let all = ["0.3.1", "0.4.0"];
        assert!(fix(&all, silent()).contains("\"0.4.0\""));
        assert!(fix(&all, present(&["0.3.1", "1.0.0"])).contains("\"0.3.1\""));
        assert!(fix(&["0.4.0", "1.1.0"], silent()).contains("\"0.4.0\""));
        assert!(fix(&["1.1.0"], silent()).starts_with("vi "));
    }

    #[test]
    fn a_version_of_several_is_taken_out_by_people() {
        let version = r#""cniVersion": "1.0.0""#;
        let versions = format!(r#"{version}, "cniVersions": ["1.0.0", "1.1.0"]"#);
        let mut node = node(&[("10-pods.conflist", &LIST.replace(version, &versions))]);
        node.configuration.programs = [("bridge".to_owned(), present(&["1.0.0"]))].into();
        let findings = judge(&node);
        assert_eq!(findings[0].fix, "vi /etc/cni/net.d/10-pods.conflist");
        let impact = &findings[0].impact;
        assert!(impact.ends_with("Write cniVersions without 1.1.0."));
    }
}
