//! The log line, and the data of an invocation from which the line is made.

use std::ffi::OsString;
use std::io;
use std::time::{Instant, SystemTime};

use serde::Serializer as _;
use serde_json::{Serializer, Value, json};

use super::settings::{Level, Settings};
use crate::environment::{ARGS, COMMAND, CONTAINER_ID, IFNAME};
use crate::{CniArgs, ErrorObject, is_hex, json};

/// Data of an invocation. The log line at the end of the invocation contains this data.
#[derive(Debug)]
pub(super) struct Log {
    pub plugin: &'static str,
    pub settings: Settings,
    pub start: Instant,
    pub steps: Vec<Step>,
    pub network: Option<String>,
    /// The configuration, at `Level::Debug` only.
    pub config: Option<Value>,
}

/// A step and the time at which it started.
#[derive(Debug)]
pub(super) struct Step {
    /// The step's key in the log line: `step`, or `undo` for a step of the rollback.
    pub key: &'static str,
    pub name: &'static str,
    pub start: Instant,
}

/// Returns the log line with its line feed. Leaves out fields without a value. The time and the
/// outcome precede the longer fields, for people who read the log.
pub(super) fn line(
    log: &Log,
    outcome: Result<(), &ErrorObject>,
    lookup: impl Fn(&str) -> Option<OsString>,
) -> io::Result<Vec<u8>> {
    let end = Instant::now();
    let text = |name| {
        let value = lookup(name).unwrap_or_default();
        value.to_string_lossy().into_owned()
    };
    let time = humantime::format_rfc3339_micros(SystemTime::now());
    let failure = outcome.err();
    let fields = [
        ("time", json!(time.to_string())),
        ("level", json!(Level::of(outcome))),
        ("plugin", json!(log.plugin)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("verb", json!(text(COMMAND))),
        ("network", json!(log.network)),
        ("container", json!(text(CONTAINER_ID))),
        ("interface", json!(text(IFNAME))),
        ("pod", json!(pod(&text(ARGS)))),
        ("traceId", json!(trace_id(&text(TRACEPARENT)))),
        ("outcome", json!(failure.map_or("ok", |_| "error"))),
        ("code", json!(failure.map(|it| it.code))),
        ("msg", json!(failure.map(|it| &it.msg))),
        ("details", json!(failure.map(|it| &it.details))),
        ("durationUs", json!(microseconds(log.start, end))),
        ("steps", timed(log, end)),
        ("config", json!(log.config)),
    ];
    let is_there = |(_, value): &(&str, Value)| json::is_set(value) && value != "";
    let mut bytes = Vec::new();
    Serializer::new(&mut bytes).collect_map(fields.into_iter().filter(is_there))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Returns a JSON list of the steps with their durations. A step ends when the next one starts, and
/// the last one ends at `end`.
fn timed(log: &Log, end: Instant) -> Value {
    let ends = log.steps.iter().skip(1).map(|it| it.start).chain([end]);
    let steps = log.steps.iter().zip(ends);
    let timed = steps.map(|(step, end)| {
        let us = microseconds(step.start, end);
        json!({step.key: step.name, "us": us})
    });
    timed.collect()
}

fn microseconds(start: Instant, end: Instant) -> u64 {
    let time = end.saturating_duration_since(start);
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Returns `NAMESPACE/NAME` of the pod from `args`, the text of `CNI_ARGS`. Returns `None` if the
/// text is malformed, or if it lacks the pod's namespace or name.
fn pod(args: &str) -> Option<String> {
    let args = CniArgs::parse(args).ok()?;
    let namespace = args.value("K8S_POD_NAMESPACE")?;
    Some(format!("{namespace}/{}", args.value("K8S_POD_NAME")?))
}

/// Returns the trace ID in `text`, the value of the environment variable `TRACEPARENT`. Returns
/// `None` if the text is malformed.
///
/// Source: W3C Trace Context, section 3.2.
fn trace_id(text: &str) -> Option<&str> {
    let fields: Vec<_> = text.split('-').collect();
    let [version, trace, parent, flags, later @ ..] = fields.as_slice() else {
        return None;
    };
    let is_zero = |it: &str| it.bytes().all(|digit| digit == b'0');
    // Versions after 00 may have more fields.
    let is_known = *version != "ff" && (*version != "00" || later.is_empty());
    let is_whole =
        is_hex(version, 2) && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    (is_known && is_whole && !is_zero(trace) && !is_zero(parent)).then_some(trace)
}

/// Returns the configuration for the log. Leaves out the keys that the runtime adds ([`OTHERS`]).
/// Masks confidential values: annotations of pods, values of keys whose names suggest a secret, and
/// URLs with a user name. If the configuration is longer than [`LONGEST`], returns only its length.
pub(super) fn without_secrets(config: &Value) -> Value {
    let mut config = config.clone();
    if let Value::Object(keys) = &mut config {
        keys.retain(|key, _| !OTHERS.iter().any(|other| other.eq_ignore_ascii_case(key)));
    }
    mask(&mut config);
    let length = config.to_string().len();
    if length > LONGEST {
        return format!("left out, {length} bytes").into();
    }
    config
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(keys) => keys.iter_mut().for_each(|(key, value)| {
            let key = key.to_ascii_lowercase();
            if SECRET.iter().any(|word| key.contains(word)) {
                *value = MASK.into();
            } else {
                mask(value);
            }
        }),
        Value::Array(values) => values.iter_mut().for_each(mask),
        Value::String(text) if text.contains("://") && text.contains('@') => *value = MASK.into(),
        _ => {}
    }
}

/// Keys that the runtime adds. The log leaves them out, because they can be long: a list of
/// attachments has an entry for each container of the network.
const OTHERS: &[&str] = &[
    "prevResult",
    "cni.dev/attachments",
    "cni.dev/valid-attachments",
];

/// Words that mark a key as confidential, in lower case. Of the keys that the suite's plugins
/// define, only `io.kubernetes.cri.pod-annotations` contains such a word.
const SECRET: &[&str] = &[
    "annotations",
    "auth",
    "cert",
    "credential",
    "key",
    "passw",
    "secret",
    "token",
];

const MASK: &str = "***";

/// Longest logged configuration, in bytes.
const LONGEST: usize = 64 << 10;

const TRACEPARENT: &str = "TRACEPARENT";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_trace_context_is_taken_only_as_it_is_specified() {
        let parent = format!("{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(trace_id(&format!("00-{parent}")), Some(TRACE));
        assert_eq!(trace_id(&format!("01-{parent}-more")), Some(TRACE));
        let zero = "0".repeat(32);
        for malformed in [
            String::new(),
            parent.clone(),
            format!("ff-{parent}"),
            format!("00-{parent}-more"),
            format!("00-{}", parent.to_uppercase()),
            format!("00-{zero}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-1"),
        ] {
            assert_eq!(trace_id(&malformed), None, "{malformed}");
        }
    }

    #[test]
    fn secrets_are_masked_at_any_depth_and_the_rest_stays() {
        let told = without_secrets(&json!({
            "type": "bridge",
            "PrevResult": {"ips": []},
            "etcd": [{"Password": "x", "endpoint": "https://a:b@c", "other": "https://c"}],
            "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "b"}, "mac": "m"},
        }));
        assert_eq!(
            told,
            json!({
                "type": "bridge",
                "etcd": [{"Password": "***", "endpoint": "***", "other": "https://c"}],
                "runtimeConfig": {"io.kubernetes.cri.pod-annotations": "***", "mac": "m"},
            })
        );
        let long = without_secrets(&json!({"list": vec![0; LONGEST]}));
        assert!(long.as_str().is_some_and(|it| it.contains("bytes")));
    }

    #[test]
    fn a_pod_is_logged_if_both_its_names_exist() {
        let args = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop";
        assert_eq!(pod(args).as_deref(), Some("shop/web-0"));
        assert_eq!(pod("K8S_POD_NAME=web-0"), None);
        assert_eq!(pod("K8S_POD_NAME"), None);
    }
}
