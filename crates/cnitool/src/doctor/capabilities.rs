//! Checks that plugins declare their capabilities. The runtime passes arguments, such as ports,
//! only to plugins that declare the capability.

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
    cni::role(plugin)?;
    let own = (node::facts(plugin), &source.plugin.config);
    let sections = [own].into_iter().chain(node::ipam(source.plugin));
    let mut arguments = sections.filter_map(|(facts, keys)| {
        let argument = facts.argument.as_ref()?;
        (argument.is_needed)(keys).then_some(argument)
    });
    let argument = arguments.next()?;
    let mut capabilities = source.plugin.capabilities.iter();
    if capabilities.any(|it| argument.capabilities.contains(&it.as_str())) {
        return None;
    }
    let capability = *argument.capabilities.first()?;
    let message = format!("{file}: {plugin} does not declare the capability {capability}");
    let others = source.plugin.key("capabilities").and_then(Value::as_object);
    let mut all = others.cloned().unwrap_or_default();
    all.insert(capability.to_owned(), Value::Bool(true));
    let level = if argument.is_required {
        Level::Problem
    } else {
        Level::Warning
    };
    let finding = Finding::new(level, message).impact(argument.impact);
    Some(edit::give(finding, source, "capabilities", &all.into()))
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
