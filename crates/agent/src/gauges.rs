//! Gauges whose values change all at once, so that no scrape sees a part of a change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Names and values of labels.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// Gauges of one family, by their labels. Clones share the values. A family without values does not
/// appear in the metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauges(Arc<Mutex<BTreeMap<Labels, i64>>>);

/// Name, help text and unit of a family.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// The name without the unit.
    pub name: &'static str,
    /// The help text, without a full stop.
    pub help: &'static str,
    /// The unit. The metrics show it as a suffix of the name.
    pub unit: Option<Unit>,
}

impl Described {
    /// Returns the description of a family without a unit, whose values count things.
    pub fn counts(name: &'static str, help: &'static str) -> Self {
        let unit = None;
        Self { name, help, unit }
    }

    /// Writes the family with these values. Writes nothing if there are no values.
    pub fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        values: &BTreeMap<Labels, i64>,
    ) -> fmt::Result {
        if values.is_empty() {
            return Ok(());
        }
        let Self { name, help, unit } = self;
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in values {
            family.encode_family(labels)?.encode_gauge(value)?;
        }
        Ok(())
    }
}

impl Gauges {
    /// Adds these gauges to `registry`, as a family with the name, help text and unit in
    /// `described`.
    pub fn register(&self, registry: &mut Registry, described: Described) {
        registry.register_collector(Box::new(Family {
            described,
            gauges: self.clone(),
        }));
    }

    /// Replaces all values. Labels that `values` does not contain lose their value.
    pub fn replace(&self, values: impl IntoIterator<Item = (Labels, i64)>) {
        let values = values.into_iter().collect();
        *self.values() = values;
    }

    /// Sets these values. Labels that `values` does not contain keep their value.
    pub fn set(&self, values: impl IntoIterator<Item = (Labels, i64)>) {
        self.values().extend(values);
    }

    fn values(&self) -> MutexGuard<'_, BTreeMap<Labels, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Family {
    described: Described,
    gauges: Gauges,
}

impl Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let values = self.gauges.values().clone();
        self.described.encode(&mut encoder, &values)
    }
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
pub(crate) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use prometheus_client::registry::Registry;

    /// Encodes the registry many times while another thread calls `set` again and again. Panics if
    /// `is_whole` returns false for one of the texts.
    pub fn expect_whole(
        registry: &Registry,
        is_whole: impl Fn(&str) -> bool,
        set: impl Fn() + Sync,
    ) {
        let is_done = AtomicBool::new(false);
        set();
        let broken = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    set();
                }
            });
            let mut texts = (0..3_000).map(|_| text(registry));
            let broken = texts.find(|it| !is_whole(it));
            is_done.store(true, Ordering::Relaxed);
            broken
        });
        assert_eq!(broken, None);
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }
}
