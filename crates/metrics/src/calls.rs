//! Counts the calls of plugins. Each line of the plugins' log is a call.

use std::path::Path;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde::Deserialize;

use crate::follower::Follower;

/// Numbers and durations of the plugins' calls, which a registry shows.
#[derive(Debug)]
pub(crate) struct Calls {
    durations: Durations,
    invalid: Counter,
}

type Durations = Family<Call, Histogram, fn() -> Histogram>;

/// Labels of a call. Only known values become labels: any program may write to the log, and each
/// new label would take memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    plugin: &'static str,
    verb: &'static str,
    /// 0 for success, or the error code. An unknown code, such as that of another suite's IPAM
    /// plugin, becomes [`OTHER`].
    code: String,
}

/// The fields of a log line that the metrics need.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logged {
    plugin: String,
    #[serde(default)]
    verb: String,
    #[serde(default)]
    code: u32,
    duration_us: u64,
}

impl Calls {
    /// Adds the durations of calls and the number of invalid log lines to the registry.
    pub fn new(registry: &mut Registry) -> Self {
        let calls = Self {
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            invalid: Counter::default(),
        };
        registry.register_with_unit(
            "cni_call_duration",
            "Durations of the plugins' calls in their log. Code 0 is success",
            Unit::Seconds,
            calls.durations.clone(),
        );
        registry.register(
            "cni_log_lines_invalid",
            "Lines in the plugins' log that no plugin of this suite wrote",
            calls.invalid.clone(),
        );
        calls
    }

    /// Counts the call that this line of the plugins' log records. A line that no plugin of this
    /// suite wrote counts as invalid. The line feed may be missing.
    fn feed(&self, line: &[u8]) {
        let logged = serde_json::from_slice::<Logged>(line).ok();
        if let Some((call, seconds)) = logged.and_then(|it| it.call()) {
            self.durations.get_or_create(&call).observe(seconds);
        } else {
            self.invalid.inc();
        }
    }

    /// Counts the plugin calls in the lines that were added to the log file at `path` since
    /// `follower` last read it. The first time, counts the calls in all lines. A file that does not
    /// exist has no lines. An incomplete last line does not count yet.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file.
    pub fn follow(&self, follower: &mut Follower, path: &Path) -> anyhow::Result<()> {
        follower.read(path, &mut |line| self.feed(line))
    }
}

impl Logged {
    /// Returns the labels of the call and its duration in seconds; `None` for a plugin of another
    /// suite.
    fn call(&self) -> Option<(Call, f64)> {
        let verb = VERBS.into_iter().find(|it| *it == self.verb);
        let code = KNOWN.contains(&self.code).then(|| self.code.to_string());
        let microseconds = u32::try_from(self.duration_us).unwrap_or(u32::MAX);
        let call = Call {
            plugin: schema::plugins().find(|it| *it == self.plugin)?,
            verb: verb.unwrap_or(OTHER),
            code: code.unwrap_or_else(|| OTHER.to_owned()),
        };
        Some((call, f64::from(microseconds) / 1e6))
    }
}

const VERBS: [&str; 7] = ["ADD", "CHECK", "DEL", "GC", "RELOAD", "STATUS", "VERSION"];

/// The codes that become labels. 0 is success, 1 to 51 belong to the CNI specification, and 100 is
/// any other failure of a plugin.
const KNOWN: [u32; 15] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 50, 51, 100];

const OTHER: &str = "other";

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(lines: &[&str]) -> String {
        let mut registry = Registry::default();
        let calls = Calls::new(&mut registry);
        for line in lines {
            calls.feed(line.as_bytes());
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_line_counts_by_plugin_verb_and_code() {
        let failed = r#"{"plugin":"portmap","verb":"ADD","code":11,"durationUs":1204}"#;
        let text = encoded(&[failed, failed]);
        let labels = r#"plugin="portmap",verb="ADD",code="11""#;
        for line in [
            format!("cni_call_duration_seconds_count{{{labels}}} 2\n"),
            format!("cni_call_duration_seconds_sum{{{labels}}} 0.002408\n"),
            format!("cni_call_duration_seconds_bucket{{le=\"0.005\",{labels}}} 2\n"),
            format!("cni_call_duration_seconds_bucket{{le=\"0.001\",{labels}}} 0\n"),
            "cni_log_lines_invalid_total 0\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn lines_of_other_programs_add_no_labels() {
        let text = encoded(&[
            "",
            "{}",
            r#"{"plugin":"calico","verb":"ADD","durationUs":1}"#,
            r#"{"plugin":"bridge","verb":"ADD","durationUs":-1}"#,
            r#"{"plugin":"bridge","verb":"x\"y","code":4711,"durationUs":1}"#,
        ]);
        assert!(text.contains("cni_log_lines_invalid_total 4\n"), "{text}");
        let labels = r#"{plugin="bridge",verb="other",code="other"} 1"#;
        assert!(text.contains(labels), "{text}");
    }
}
