//! Checks the kernel's features, and STATUS of the plugins.

use node::{Consequence, Lack, Need, Node, Refusal, Source};
use serde_json::Value;

use super::finding::{Finding, Level, quoted};

/// Reports missing kernel features. A feature that no network needs is no fault.
pub fn judge(node: &Node) -> Vec<Finding> {
    if node.lacks.is_empty() {
        let message = "bridges, veth pairs, limits and nf_tables are available";
        return vec![Finding::ok(message)];
    }
    node.lacks.iter().map(|it| lack(node, it)).collect()
}

/// Reports the errors that plugins returned for STATUS.
pub fn refusals(node: &Node) -> Vec<Finding> {
    let finding = |refusal: &Refusal| {
        let level = Level::of_file(node, &refusal.file);
        let message = format!("{}: {}", refusal.file, refusal.reason);
        let file = node.configuration.directory.join(&refusal.file);
        Finding::new(level, message)
            .impact("The plugin's STATUS reports this; every ADD fails.")
            .fix(format!("vi {}", quoted(&file.display())))
    };
    node.refusals.iter().map(finding).collect()
}

fn lack(node: &Node, lack: &Lack) -> Finding {
    let Lack { reason, need } = lack;
    let Need { plugins, keys, .. } = need;
    let plugins = plugins.join(" or ");
    let what = match keys {
        [] => plugins,
        keys => format!("{plugins} with {}", keys.join(" or ")),
    };
    let mut sources = node.configuration.sources();
    match sources.find(|it| needs(*it, need)) {
        None => Finding::ok(reason).impact(format!(
            "Only {what} needs it, which no network configures."
        )),
        Some(Source { file, .. }) => match need.consequence {
            Consequence::LimitsEvadable => Finding::warning(reason)
                .impact("Only tc limits the egress of pods: root in a pod can exceed its limit."),
            Consequence::OneQueue => Finding::ok(reason).impact(
                "Packets of a limited pod wait behind each other, for 25 ms or ten frames.",
            ),
            Consequence::AddFails => Finding::problem(reason).impact(format!(
                "{what} needs it, and {} configures that: its ADDs fail.",
                file.name
            )),
        },
    }
}

fn needs(source: Source<'_>, need: &Need) -> bool {
    let is_asked = |key: &&str| match source.plugin.key(key) {
        None | Some(Value::Bool(false)) => false,
        Some(value) => value.as_f64() != Some(0.0),
    };
    let Need { plugins, keys, .. } = need;
    plugins.contains(&source.plugin.program.as_str())
        && (keys.is_empty() || keys.iter().any(is_asked))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{levels, node};
    use super::*;

    fn judged((keys, consequence): (&'static [&'static str], Consequence)) -> Level {
        let list =
            r#"{"name": "pods", "plugins": [{"type": "bridge", "vlan": 0, "ipMasq": true}]}"#;
        let mut node = node(&[("pods.conflist", list)]);
        node.lacks = vec![Lack {
            reason: "the kernel does not support VLAN filtering of bridges".to_owned(),
            need: Need {
                plugins: &["bridge"],
                keys,
                consequence,
            },
        }];
        levels(&judge(&node))[0]
    }

    #[test]
    fn what_nothing_needs_may_be_lacking() {
        let fails = Consequence::AddFails;
        assert_eq!(judged((&["vlan", "vlanTrunk"], fails)), Level::Ok);
        assert_eq!(judged((&["vlanTrunk", "ipMasq"], fails)), Level::Problem);
        assert_eq!(judged((&[], fails)), Level::Problem);
        assert_eq!(judged((&[], Consequence::LimitsEvadable)), Level::Warning);
        assert_eq!(judged((&[], Consequence::OneQueue)), Level::Ok);
    }

    #[test]
    fn what_plugins_of_the_network_that_is_taken_refuse_is_a_problem() {
        let list = r#"{"name": "pods", "plugins": [{"type": "bridge"}]}"#;
        let mut node = node(&[("1.conflist", list), ("2.conflist", list)]);
        let refusal = |file: &str| Refusal {
            file: file.to_owned(),
            reason: "plugin bridge: invalid mtu (code 7)".to_owned(),
        };
        node.refusals = vec![refusal("1.conflist"), refusal("2.conflist")];
        assert_eq!(levels(&refusals(&node)), [Level::Problem, Level::Warning]);
    }
}
