//! The examples for Prometheus and Grafana use metrics that exist.

use std::fs;

use serde_json::Value;
use tests::Host;
use tests::metered::both;
use tests::open_metrics::Metrics;

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
        for name in metric_names(&expression) {
            assert!(names.contains(name), "{name}: {expression}");
            used += 1;
        }
    }
    assert!(used > 10, "{used}");
}

/// Returns the queries of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    let directory = tests::Example::directory();
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
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

/// Adds the values of all keys `expr` and `query`, at any depth.
fn collect(value: &Value, expressions: &mut Vec<String>) {
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                match value {
                    Value::String(text) if key == "expr" || key == "query" => {
                        expressions.push(text.clone());
                    }
                    value => collect(value, expressions),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|it| collect(it, expressions)),
        _ => {}
    }
}

fn metric_names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|it| it.starts_with("cni_"))
}
