//! Metrics of the devices that containers have, and of those that the kubelet may allocate. The
//! kubelet lists both in its pod resources API.
//!
//! Only the kubelet allocates devices, so its last answer stays true while it does not run. If it
//! does not answer, these metrics keep its last answer and show the age of that answer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::pod_resources::Known;
use crate::gauges::{Described, number};

/// The kubelet's last answer with its time; `None` if the kubelet has never answered. Clones share
/// it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allocated(Arc<Mutex<Option<(Instant, Known)>>>);

impl Allocated {
    /// Replaces the last answer.
    pub(super) fn set(&self, known: Known) {
        let answer = Some((Instant::now(), known));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

impl Collector for Allocated {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some((time, known)) = last else {
            return Ok(());
        };
        Described::counts("allocated_devices", "Devices that a container has")
            .encode(&mut encoder, &known.allocated)?;
        let allocatable = known.allocatable.into_iter().flatten();
        let allocatable = allocatable.map(|(name, count)| (vec![("resource", name)], count));
        let help = "Devices that the kubelet may allocate, as it lists them";
        Described::counts("kubelet_devices", help).encode(&mut encoder, &allocatable.collect())?;
        let help = "Time since the kubelet last listed the devices of containers";
        let (name, unit) = ("allocated_devices_age", Unit::Seconds);
        let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Gauge)?;
        metric.encode_gauge(&number(time.elapsed().as_secs()))
    }
}
