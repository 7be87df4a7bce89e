//! Checks the kernel's features, and STATUS of the plugins.

use facts::{Consequence, MissingFeature};
use itertools::Itertools as _;
use node::{Node, Refusal, Source};
use serde_json::Value;

use super::edit;
use super::finding::{Finding, Level};

/// Reports missing kernel features. A feature that no network needs is no fault.
pub fn judge(node: &Node) -> Vec<Finding> {
    if node.missing_features.is_empty() {
        let message = "bridges, veth pairs, limits and nf_tables are available";
        return vec![Finding::ok(message)];
    }
    node.missing_features
        .iter()
        .map(|it| report(node, it))
        .collect()
}

/// Reports the errors that plugins returned for STATUS.
pub fn refusals(node: &Node) -> Vec<Finding> {
    let finding = |refusal: &Refusal| {
        let level = Level::of_file(node, &refusal.file);
        let message = format!("{}: {}", refusal.file, refusal.reason);
        let file = node.configuration.directory.join(&refusal.file);
        let finding = Finding::new(level, message);
        let finding = finding.impact("The plugin's STATUS reports this; every ADD fails.");
        // `judge` reports a missing kernel feature, with the command that may add it.
        let mut sources = node.configuration.sources();
        let is_of_kernel = sources.any(|it| it.file.name == refusal.file && lacks(node, it));
        if is_of_kernel {
            return finding;
        }
        finding.fix(edit::open(&file.display().to_string()))
    };
    node.refusals.iter().map(finding).collect()
}

/// Returns whether every ADD of the plugin fails because of a missing kernel feature.
fn lacks(node: &Node, source: Source<'_>) -> bool {
    let mut missing = node.missing_features.iter();
    missing.any(|it| it.need.consequence == Consequence::AddFails && needs(source, it))
}

fn report(node: &Node, feature: &MissingFeature) -> Finding {
    let MissingFeature { reason, need, .. } = feature;
    let plugins = feature.plugins.join(" or ");
    let what = match need.keys {
        [] => plugins,
        keys => format!("{plugins} with {}", keys.join(" or ")),
    };
    let sources = node.configuration.sources();
    let needing: Vec<_> = sources.filter(|it| needs(*it, feature)).collect();
    let Some(Source { file, .. }) = needing.first() else {
        let impact = format!("Only {what} needs it, which no network configures.");
        return Finding::ok(reason).impact(impact);
    };
    let limited = needing.iter().find(|it| has_rate(**it));
    let finding = match need.consequence {
        Consequence::OneQueue => Finding::ok(reason)
            .impact("Packets of a limited pod wait behind each other, for 25 ms or ten frames."),
        Consequence::AddFails => Finding::problem(reason).impact(format!(
            "{what} needs it, and {} configures that: its ADDs fail.",
            file.name
        )),
        Consequence::LimitedAddFails => match limited {
            Some(Source { file, .. }) => Finding::problem(reason)
                .impact(format!("{} limits every pod: its ADDs fail.", file.name)),
            None => Finding::warning(reason)
                .impact("ADDs of pods with a limit fail. Other pods are attached."),
        },
    };
    finding.fix(loading(feature))
}

/// Returns commands that load the modules with the missing feature.
fn loading(feature: &MissingFeature) -> String {
    let mut commands = feature.modules.iter().map(|it| format!("modprobe {it}"));
    commands.join("\n")
}

/// Returns whether the configuration of `bandwidth` limits every pod of the network.
fn has_rate(source: Source<'_>) -> bool {
    let rates = ["ingressRate", "egressRate"].into_iter();
    let mut rates = rates.filter_map(|it| source.plugin.key(it)?.as_f64());
    rates.any(|it| it > 0.0)
}

fn needs(source: Source<'_>, feature: &MissingFeature) -> bool {
    let is_asked = |key: &&str| match source.plugin.key(key) {
        None | Some(Value::Bool(false)) => false,
        Some(value) => value.as_f64() != Some(0.0),
    };
    let keys = feature.need.keys;
    feature.plugins.contains(&source.plugin.program.as_str())
        && (keys.is_empty() || keys.iter().any(is_asked))
}

#[cfg(test)]
mod tests {
    use facts::Need;

    use super::super::tests::{levels, node};
    use super::*;

    fn lacking(plugin: &str, (name, need): (&'static str, Need)) -> Node {
        let list = format!(r#"{{"name": "pods", "plugins": [{plugin}]}}"#);
        let mut node = node(&[("pods.conflist", &list)]);
        node.missing_features = vec![MissingFeature {
            reason: "the kernel lacks it".to_owned(),
            plugins: vec![name],
            need,
            modules: vec!["nft_masq"],
        }];
        node
    }

    fn judged((keys, consequence): (&'static [&'static str], Consequence)) -> Level {
        let plugin = r#"{"type": "bridge", "vlan": 0, "ipMasq": true}"#;
        let need = ("bridge", Need { keys, consequence });
        levels(&judge(&lacking(plugin, need)))[0]
    }

    #[test]
    fn only_pods_with_a_limit_need_what_limits_need() {
        for (keys, level) in [
            ("", Level::Warning),
            (r#", "ingressRate": 0"#, Level::Warning),
            (r#", "egressRate": 8000000"#, Level::Problem),
        ] {
            let plugin = format!(r#"{{"type": "bandwidth"{keys}}}"#);
            let need = Need {
                keys: &[],
                consequence: Consequence::LimitedAddFails,
            };
            let need = ("bandwidth", need);
            assert_eq!(levels(&judge(&lacking(&plugin, need))), [level], "{keys}");
        }
    }

    /// The configuration asks for nothing wrong.
    #[test]
    fn refusal_for_want_of_a_module_has_its_modprobe() {
        let need = Need {
            keys: &["ipMasq"],
            consequence: Consequence::AddFails,
        };
        let need = ("bridge", need);
        let mut node = lacking(r#"{"type": "bridge", "ipMasq": true}"#, need);
        node.refusals = vec![Refusal {
            file: "pods.conflist".to_owned(),
            reason: "plugin bridge: nf_tables: … (code 50)".to_owned(),
        }];
        assert_eq!(judge(&node)[0].fix, "modprobe nft_masq");
        assert_eq!(refusals(&node)[0].fix, "");
        node.missing_features.clear();
        assert_eq!(refusals(&node)[0].fix, "vi /etc/cni/net.d/pods.conflist");
    }

    #[test]
    fn what_nothing_needs_may_be_lacking() {
        let fails = Consequence::AddFails;
        assert_eq!(judged((&["vlan", "vlanTrunk"], fails)), Level::Ok);
        assert_eq!(judged((&["vlanTrunk", "ipMasq"], fails)), Level::Problem);
        assert_eq!(judged((&[], fails)), Level::Problem);
        assert_eq!(judged((&[], Consequence::LimitedAddFails)), Level::Warning);
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
