//! Metric families: a name with its help text, and one sample for each set of labels. [`Latest`]
//! adds them to a registry.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::label::Text;

/// Name, type and help text of a metric family.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The name without the unit and the suffix `_total` of counters, which the encoder appends.
    name: &'static str,
    unit: Option<&'static str>,
    kind: MetricType,
    help: &'static str,
}

/// A family with its samples.
#[derive(Debug)]
pub struct Metric {
    family: Family,
    pub(crate) samples: Vec<(Labels, u64)>,
}

/// Names and values of a sample's labels. Samples of several families may share them.
pub type Labels = Arc<[(&'static str, Text)]>;

impl Family {
    /// Returns a family of gauges: their values may rise and fall.
    pub const fn gauges(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            unit: None,
            kind: MetricType::Gauge,
            help,
        }
    }

    /// Returns a family of counters: their values only rise.
    pub const fn counters(name: &'static str, help: &'static str) -> Self {
        Self {
            kind: MetricType::Counter,
            ..Self::gauges(name, help)
        }
    }

    /// Returns the family with this unit, which becomes a part of its name.
    pub const fn in_unit(self, unit: &'static str) -> Self {
        Self {
            unit: Some(unit),
            ..self
        }
    }

    /// Returns the family with these samples, each with its labels and its value. A value above
    /// 2^64-1 counts as 2^64-1.
    pub fn with<L: Into<Labels>, N: TryInto<u64>>(
        self,
        samples: impl IntoIterator<Item = (L, N)>,
    ) -> Metric {
        let number = |it: N| it.try_into().unwrap_or(u64::MAX);
        let samples = samples.into_iter();
        Metric {
            family: self,
            samples: samples.map(|(it, n)| (it.into(), number(n))).collect(),
        }
    }

    /// Returns the family with these samples, as [`Self::with`] does. A sample has the values of the
    /// labels `names`, and its own value.
    pub fn by<const COUNT: usize, T: Into<Text>, N: TryInto<u64>>(
        self,
        names: [&'static str; COUNT],
        samples: impl IntoIterator<Item = ([T; COUNT], N)>,
    ) -> Metric {
        let labels = |values: [T; COUNT]| {
            let labels = names.into_iter().zip(values.map(Into::into));
            labels.collect::<Labels>()
        };
        let samples = samples.into_iter();
        self.with(samples.map(|(values, number)| (labels(values), number)))
    }

    /// Returns the family with one sample, which has no labels.
    pub fn value(self, value: impl TryInto<u64>) -> Metric {
        self.with([(Labels::default(), value)])
    }
}

impl Metric {
    /// Writes the family with all its samples to `encoder`. Without samples, writes nothing, not
    /// even the help text.
    ///
    /// # Errors
    /// `encoder` cannot be written.
    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.samples.is_empty() {
            return Ok(());
        }
        let Family {
            name,
            unit,
            kind,
            help,
        } = self.family;
        let unit = unit.map(|it| Unit::Other(it.to_owned()));
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        let encode = |sample: &mut MetricEncoder<'_>, value: &u64| match kind {
            MetricType::Counter => sample.encode_counter::<NoLabelSet, _, u64>(value, None),
            _ => sample.encode_gauge(value),
        };
        for (labels, value) in &self.samples {
            let labels = &**labels;
            if labels.is_empty() {
                encode(&mut family, value)?;
            } else {
                encode(&mut family.encode_family(&labels)?, value)?;
            }
        }
        Ok(())
    }
}

/// Metrics that change all at once, so that no scrape sees a part of a change. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Latest(Arc<Mutex<Arc<[Metric]>>>);

impl Latest {
    /// Returns no metrics yet. `registry` shows those that are set later.
    pub fn new(registry: &mut Registry) -> Self {
        let latest = Self::default();
        registry.register_collector(Box::new(latest.clone()));
        latest
    }

    /// Replaces all metrics.
    pub fn set(&self, metrics: impl Into<Arc<[Metric]>>) {
        *self.0.lock() = metrics.into();
    }
}

impl Collector for Latest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Releases the lock before it writes, so that `set` does not wait for that.
        let metrics = Arc::clone(&self.0.lock());
        metrics.iter().try_for_each(|it| it.encode(&mut encoder))
    }
}
