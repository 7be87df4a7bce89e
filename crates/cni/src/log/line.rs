//! The log line.

use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value};

use super::invocation::{Log, Way};
use super::settings::Level;
use crate::args::CniArgs;
use crate::environment::{ARGS, COMMAND, CONTAINER_ID, IFNAME};
use crate::error::ErrorObject;

/// Fields of the line, in reading order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line<'a> {
    time: String,
    level: Level,
    plugin: &'a str,
    version: &'a str,
    #[serde(flatten)]
    subject: Subject<'a>,
    outcome: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure<'a>>,
    duration_us: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<TimedStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a Value>,
}

/// The verb, the attachment and the caller, as far as the request names them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Subject<'a> {
    #[serde(skip_serializing_if = "String::is_empty")]
    verb: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'a str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    container: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    interface: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct Failure<'a> {
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

#[derive(Debug, Serialize)]
struct TimedStep {
    #[serde(rename = "step", skip_serializing_if = "Option::is_none")]
    taken: Option<&'static str>,
    #[serde(rename = "undo", skip_serializing_if = "Option::is_none")]
    undone: Option<&'static str>,
    us: u64,
}

impl<'a> Line<'a> {
    pub fn new(
        log: &'a Log,
        outcome: Result<(), &'a ErrorObject>,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let end = Instant::now();
        let failure = outcome.err();
        Self {
            time: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            level: failure.map_or(Level::Info, |_| Level::Error),
            plugin: log.plugin,
            version: log.version,
            subject: Subject::new(log, lookup),
            outcome: failure.map_or("ok", |_| "error"),
            failure: failure.map(|object| Failure {
                code: object.code,
                msg: &object.msg,
                details: &object.details,
            }),
            duration_us: microseconds(log.start, end),
            steps: timed(log, end),
            config: log.config.as_ref(),
        }
    }

    /// Returns the line with its line feed.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

impl<'a> Subject<'a> {
    fn new(log: &'a Log, lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name| {
            let value = lookup(name).unwrap_or_default();
            value.to_string_lossy().into_owned()
        };
        Self {
            verb: text(COMMAND),
            network: log.network.as_deref(),
            container: text(CONTAINER_ID),
            interface: text(IFNAME),
            pod: pod(&text(ARGS)),
            trace_id: trace_id(&text(TRACEPARENT)).map(str::to_owned),
        }
    }
}

/// Returns the steps with their durations. Reading the request counts as the first one.
fn timed(log: &Log, end: Instant) -> Vec<TimedStep> {
    let ends = log.steps.iter().skip(1).map(|it| it.start).chain([end]);
    let steps = log.steps.iter().zip(ends).map(|(step, end)| TimedStep {
        taken: (step.way == Way::There).then_some(step.name),
        undone: (step.way == Way::Back).then_some(step.name),
        us: microseconds(step.start, end),
    });
    let first = log.steps.first().map(|first| TimedStep {
        taken: Some("read the request"),
        undone: None,
        us: microseconds(log.start, first.start),
    });
    first.into_iter().chain(steps).collect()
}

/// Returns the microseconds from `start` to `end`.
fn microseconds(start: Instant, end: Instant) -> u64 {
    let time: Duration = end.saturating_duration_since(start);
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Returns `NAMESPACE/NAME` from the arguments of Kubernetes.
fn pod(args: &str) -> Option<String> {
    let args = CniArgs::parse(args).ok()?;
    let (namespace, name) = (
        args.value("K8S_POD_NAMESPACE")?,
        args.value("K8S_POD_NAME")?,
    );
    Some(format!("{namespace}/{name}"))
}

/// Returns the trace ID of a `traceparent`; `None` if it is malformed.
///
/// Source: W3C Trace Context, section 3.2.
fn trace_id(text: &str) -> Option<&str> {
    let mut fields = text.split('-');
    let version = hexadecimal(fields.next()?, 2).filter(|it| *it != "ff")?;
    let trace = hexadecimal(fields.next()?, 32).filter(|it| is_not_zero(it))?;
    hexadecimal(fields.next()?, 16).filter(|it| is_not_zero(it))?;
    hexadecimal(fields.next()?, 2)?;
    // Later versions may have more fields.
    (version != "00" || fields.next().is_none()).then_some(trace)
}

fn hexadecimal(text: &str, digits: usize) -> Option<&str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == digits && text.bytes().all(is_digit)).then_some(text)
}

fn is_not_zero(text: &str) -> bool {
    text.bytes().any(|digit| digit != b'0')
}

/// Returns the configuration without the runtime's keys and with confidential values masked.
/// Confidential are annotations of pods, values of keys that suggest a secret, and addresses with a
/// user name.
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
        Value::Object(keys) => mask_keys(keys),
        Value::Array(values) => values.iter_mut().for_each(mask),
        Value::String(text) if text.contains("://") && text.contains('@') => *value = MASK.into(),
        _ => {}
    }
}

fn mask_keys(keys: &mut Map<String, Value>) {
    for (key, value) in keys {
        let key = key.to_ascii_lowercase();
        if SECRET.iter().any(|word| key.contains(word)) {
            *value = MASK.into();
        } else {
            mask(value);
        }
    }
}

/// Keys of the runtime; their length grows with the network's attachments.
const OTHERS: &[&str] = &[
    "prevResult",
    "cni.dev/attachments",
    "cni.dev/valid-attachments",
];

/// Parts of confidential keys, in lower case. No key of these plugins contains one.
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
