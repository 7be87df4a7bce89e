//! The examples for Prometheus and Grafana use metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;
use serde_json::Value;
use tests::Host;
use tests::metered::both;
use tests::open_metrics::Metrics;
use tests::promql::Query;

#[test]
fn metric_names_of_the_examples_exist() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    let log = host.dir().join("cni.log");
    tool.on("add", "pods", &a).env("CNI_LOG_FILE", &log).ok();
    let text = tool
        .run(&["metrics"])
        .env("CNI_LOG_FILE", &log)
        .run()
        .stdout;
    let metrics = Metrics::parse(&text);
    let names = metrics.names();
    let mut used = 0;
    for expression in expressions() {
        for name in Query::parse(&expression).metrics {
            assert!(names.contains(name.as_str()), "{name}: {expression}");
            used += 1;
        }
    }
    assert!(used > 10, "{used}");
}

/// A rule file of Prometheus
/// (<https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/>).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    duration: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[test]
fn alerts_are_rules_of_prometheus_whose_texts_have_only_labels_of_their_results() {
    let rules: Rules = serde_norway::from_str(&read("metrics/rules.yaml")).unwrap();
    let mut names = BTreeSet::new();
    for group in &rules.groups {
        assert!(names.insert(&group.name), "{}", group.name);
        for alert in &group.rules {
            assert!(names.insert(&alert.alert), "{}", alert.alert);
            let query = Query::parse(&alert.expr);
            let severity = alert.labels["severity"].as_str();
            assert!(
                ["info", "warning", "critical"].contains(&severity),
                "{alert:?}"
            );
            for text in alert.annotations.values() {
                for label in labels_in(text) {
                    let is_kept = query.kept.as_ref().is_none_or(|it| it.contains(label));
                    assert!(is_kept, "{label}: {alert:?}");
                }
            }
            if let Some(duration) = &alert.duration {
                let minutes = duration.strip_suffix('m').map(str::parse::<u32>);
                assert!(matches!(minutes, Some(Ok(_))), "{alert:?}");
            }
        }
    }
}

/// Returns the labels in a template such as `{{ $labels.instance }}: {{ $value | humanize }}`.
fn labels_in(template: &str) -> Vec<&str> {
    let mut labels = Vec::new();
    for part in template.split("{{").skip(1) {
        let (action, _) = part.split_once("}}").unwrap();
        let action = action.trim();
        match action.strip_prefix("$labels.") {
            Some(label) => labels.push(label),
            None => assert!(
                ["$value", "$value | humanize"].contains(&action),
                "{action}"
            ),
        }
    }
    labels
}

fn read(file: &str) -> String {
    fs::read_to_string(tests::Example::directory().join(file)).unwrap()
}

/// Returns the queries of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("metrics/dashboard.json")).unwrap();
    let rules: Value = serde_norway::from_str(&read("metrics/rules.yaml")).unwrap();
    let mut expressions = Vec::new();
    for document in [&dashboard, &rules] {
        let before = expressions.len();
        collect(document, &mut expressions);
        assert!(expressions.len() > before, "{document:#}");
    }
    expressions
}

/// Adds the values of all keys `expr`, at any depth.
fn collect(value: &Value, expressions: &mut Vec<String>) {
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                match value {
                    Value::String(text) if key == "expr" => expressions.push(text.clone()),
                    value => collect(value, expressions),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|it| collect(it, expressions)),
        _ => {}
    }
}
