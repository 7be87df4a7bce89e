//! Metrics of the devices that containers have, and of those that the kubelet may allocate. The
//! kubelet lists both in its pod resources API.
//!
//! Only the kubelet allocates devices, so its last answer stays true while it does not run. If it
//! does not answer, these metrics keep its last answer and show the age of that answer.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use metrics::Family;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::pod_resources::Known;

/// The kubelet's last answer with its time; `None` if the kubelet has never answered. Clones share
/// it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allocated(Arc<Mutex<Option<(Instant, Known)>>>);

impl Allocated {
    pub(super) fn set(&self, known: Known) {
        *self.0.lock() = Some((Instant::now(), known));
    }
}

impl Collector for Allocated {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last = self.0.lock().clone();
        let Some((time, known)) = last else {
            return Ok(());
        };
        let allocatable = known.allocatable.into_iter().flatten();
        let metrics = [
            ALLOCATED.by(
                ["namespace", "pod", "container", "resource"],
                known.allocated,
            ),
            ALLOCATABLE.by(
                ["resource"],
                allocatable.map(|(name, count)| ([name], count)),
            ),
            AGE.value(time.elapsed().as_secs()),
        ];
        metrics.iter().try_for_each(|it| it.encode(&mut encoder))
    }
}

const ALLOCATED: Family = Family::gauges("allocated_devices", "Devices that a container has");

const ALLOCATABLE: Family = Family::gauges(
    "kubelet_devices",
    "Devices that the kubelet may allocate, as it lists them",
);

const AGE: Family = Family::gauges(
    "allocated_devices_age",
    "Time since the kubelet last listed the devices of containers",
)
.in_unit("seconds");
