//! Writes metric families: a name with its help text, and one sample for each set of labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Name and help text of a metric family.
pub(crate) struct Family {
    /// The name without unit and without the suffix `_total`.
    pub name: &'static str,
    /// The unit, which becomes a part of the name.
    pub unit: Option<&'static str>,
    /// The help text.
    pub help: &'static str,
}

/// Writes families to a text.
pub(crate) struct Writer<'a>(pub DescriptorEncoder<'a>);

impl Writer<'_> {
    /// Writes a family of numbers that may fall. Without samples, it writes nothing.
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let samples = samples.into_iter();
        let samples = samples.map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.write(family, MetricType::Gauge, samples)
    }

    /// Writes a family of numbers that only rise. Without samples, it writes nothing.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let samples = samples.into_iter();
        let samples = samples.map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.write(family, MetricType::Counter, samples)
    }

    /// Writes a family without labels.
    pub fn gauge(&mut self, family: &Family, value: u64) -> fmt::Result {
        self.describe(family, MetricType::Gauge, |encoder| {
            ConstGauge::new(value).encode(encoder)
        })
    }

    fn write<L: EncodeLabelSet>(
        &mut self,
        family: &Family,
        kind: MetricType,
        samples: impl Iterator<Item = (L, impl EncodeMetric)>,
    ) -> fmt::Result {
        let mut samples = samples.peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        self.describe(family, kind, |mut encoder| {
            for (labels, value) in samples {
                value.encode(encoder.encode_family(&labels)?)?;
            }
            Ok(())
        })
    }

    fn describe(
        &mut self,
        Family { name, unit, help }: &Family,
        kind: MetricType,
        samples: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let unit = unit.map(|it| Unit::Other(it.to_owned()));
        let encoder = &mut self.0;
        samples(encoder.encode_descriptor(name, help, unit.as_ref(), kind)?)
    }
}

/// Converts a count to `u64`.
pub(crate) fn number(count: usize) -> u64 {
    count.try_into().unwrap_or(u64::MAX)
}
