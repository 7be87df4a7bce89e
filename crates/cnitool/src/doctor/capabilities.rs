//! Checks that plugins declare their capabilities. The runtime passes arguments, such as ports,
//! only to plugins that declare the capability.

use bandwidth::POD_ANNOTATIONS;
use cni::json;
use node::{Node, Source};
use serde_json::Value;

use super::edit;
use super::finding::{Finding, Level};

/// Reports each plugin that needs a capability and does not declare it.
pub fn judge(node: &Node) -> Vec<Finding> {
    let sources = node.configuration.sources();
    sources.filter_map(finding).collect()
}

fn finding(source: Source<'_>) -> Option<Finding> {
    let (file, plugin) = (&source.file.name, &source.plugin.program);
    let mut rates = ["ingressRate", "egressRate", "podResources"].into_iter();
    let mut has_rates = || rates.any(|it| source.plugin.key(it).is_some());
    let (declared, level, impact) = match plugin.as_str() {
        "portmap" => {
            let impact = "The runtime passes it no ports, so hostPorts silently do not work.";
            (&["portMappings"][..], Level::Problem, impact)
        }
        "bandwidth" if !has_rates() => {
            let impact = "The runtime passes it no rates, so pods silently have no limits.";
            (&["bandwidth", POD_ANNOTATIONS][..], Level::Warning, impact)
        }
        "bridge" | "ptp" if lacks(source, "host-local", &["ranges", "subnet"]) => {
            let impact =
                "host-local has no range, and the runtime passes it none: every ADD fails.";
            (&["ipRanges"][..], Level::Problem, impact)
        }
        "bridge" | "ptp" if lacks(source, "static", &["addresses"]) => {
            let impact =
                "static has no address: an ADD fails unless the runtime passes one in CNI_ARGS.";
            (&["ips"][..], Level::Warning, impact)
        }
        _ => return None,
    };
    let mut capabilities = source.plugin.capabilities.iter();
    if capabilities.any(|it| declared.contains(&it.as_str())) {
        return None;
    }
    let capability = *declared.first()?;
    let message = format!("{file}: {plugin} does not declare the capability {capability}");
    let others = source.plugin.key("capabilities").and_then(Value::as_object);
    let mut all = others.cloned().unwrap_or_default();
    all.insert(capability.to_owned(), Value::Bool(true));
    let finding = Finding::new(level, message).impact(impact);
    Some(edit::give(finding, source, "capabilities", &all.into()))
}

/// Returns whether the plugin's section `ipam` has the type `plugin` and none of `keys`.
fn lacks(source: Source<'_>, plugin: &str, keys: &[&str]) -> bool {
    let lacks = |ipam| keys.iter().all(|it| json::value(ipam, it).is_none());
    source.plugin.ipam_type() == Some(plugin) && source.plugin.ipam().is_some_and(lacks)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{levels, node};
    use super::*;

    fn judged(plugin: &str) -> Vec<Finding> {
        let list = format!(r#"{{"name": "pods", "plugins": [{plugin}]}}"#);
        judge(&node(&[("10-pods.conflist", &list)]))
    }

    #[test]
    fn plugin_without_its_capability_is_reported() {
        for (plugin, level, name) in [
            (r#"{"type": "portmap"}"#, Level::Problem, "portMappings"),
            (
                r#"{"type": "portmap", "capabilities": {"portMappings": false}}"#,
                Level::Problem,
                "portMappings",
            ),
            (r#"{"type": "bandwidth"}"#, Level::Warning, "bandwidth"),
            (
                r#"{"type": "bridge", "ipam": {"type": "host-local"}}"#,
                Level::Problem,
                "ipRanges",
            ),
            (
                r#"{"type": "bridge", "ipam": {"type": "static"}}"#,
                Level::Warning,
                "ips",
            ),
        ] {
            let findings = judged(plugin);
            assert_eq!(levels(&findings), [level], "{plugin}");
            assert!(findings[0].message.ends_with(name), "{findings:?}");
        }
    }

    #[test]
    fn declarations_that_are_there_stay() {
        let finding = &judged(r#"{"type": "portmap", "capabilities": {"dns": true}}"#)[0];
        let written = r#"Write "capabilities": {"dns":true,"portMappings":true} for portmap."#;
        assert!(finding.impact.ends_with(written), "{finding:?}");
        assert_eq!(finding.fix, "vi /etc/cni/net.d/10-pods.conflist");
        let finding = &judged(r#"{"type": "portmap"}"#)[0];
        assert!(
            finding.fix.contains(r#"{"portMappings":true}"#),
            "{finding:?}"
        );
    }

    #[test]
    fn plugin_with_its_capability_or_without_need_is_ok() {
        for plugin in [
            r#"{"type": "portmap", "capabilities": {"portMappings": true}}"#,
            r#"{"type": "bandwidth", "IngressRate": 1000000}"#,
            r#"{"type": "bandwidth", "podResources": true}"#,
            r#"{"type": "bandwidth", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}"#,
            r#"{"type": "bridge", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}"#,
            r#"{"type": "bridge", "ipam": {"type": "dhcp"}}"#,
            r#"{"type": "bridge", "ipam": {"type": "static", "addresses": []}}"#,
            r#"{"type": "bridge", "ipam": {"type": "static"}, "capabilities": {"ips": true}}"#,
            r#"{"type": "bridge"}"#,
        ] {
            assert_eq!(judged(plugin), [], "{plugin}");
        }
    }
}
