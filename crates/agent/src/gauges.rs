//! What the counters and gauges of the agent's parts have in common.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::registry::{Metric, Registry};

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Adds a metric to `registry`, with a help text without a full stop. Returns a clone, which shares
/// its values.
pub(crate) fn registered<M: Metric + Clone + Default>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Returns a count as the value of a gauge; [`i64::MAX`] if the count is larger.
pub(crate) fn number(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Returns the current Unix time in seconds as the value of a gauge.
pub(crate) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| number(it.as_secs()))
}

#[cfg(test)]
pub(crate) mod tests;
