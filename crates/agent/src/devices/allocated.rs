//! Metrics of the devices that containers have, and of those that the kubelet may allocate. The
//! kubelet lists both in its pod resources API.
//!
//! Only the kubelet allocates devices, so its last answer stays true while it does not run. If it
//! does not answer, these metrics keep its last answer and show the age of that answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use metrics::Family;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::pod_resources::Known;
use crate::http;

/// The kubelet's last answer. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Allocated {
    /// With its time; `None` if the kubelet has never answered.
    last: Arc<Mutex<Option<(Instant, Known)>>>,
    per: Per,
}

/// What a series of devices counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Per {
    /// The devices that a container has.
    Container,
    /// Those of all containers.
    Resource,
}

impl Per {
    /// Returns what the section `metrics` asks for.
    pub(crate) fn of(metrics: Option<&http::Config>) -> Self {
        if metrics.is_none_or(|it| it.pods) {
            Self::Container
        } else {
            Self::Resource
        }
    }
}

impl Allocated {
    pub(super) fn new(per: Per) -> Self {
        let last = Arc::default();
        Self { last, per }
    }

    pub(super) fn set(&self, known: Known) {
        *self.last.lock() = Some((Instant::now(), known));
    }
}

impl Collector for Allocated {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last = self.last.lock().clone();
        let Some((time, known)) = last else {
            return Ok(());
        };
        let allocatable = known.allocatable.into_iter().flatten();
        let allocated = match self.per {
            Per::Container => ALLOCATED.by(
                ["namespace", "pod", "container", "resource"],
                known.allocated,
            ),
            Per::Resource => {
                let mut sums = BTreeMap::<_, u64>::new();
                for ([_, _, _, resource], count) in known.allocated {
                    *sums.entry([resource]).or_default() += count;
                }
                ALLOCATED.by(["resource"], sums)
            }
        };
        let metrics = [
            allocated,
            ALLOCATABLE.by(
                ["resource"],
                allocatable.map(|(name, count)| ([name], count)),
            ),
            AGE.value(time.elapsed().as_secs()),
        ];
        metrics.iter().try_for_each(|it| it.encode(&mut encoder))
    }
}

const ALLOCATED: Family = Family::gauges("allocated_devices", "Devices that containers have");

const ALLOCATABLE: Family = Family::gauges(
    "kubelet_devices",
    "Devices that the kubelet may allocate, as it lists them",
);

const AGE: Family = Family::gauges(
    "allocated_devices_age",
    "Time since the kubelet last listed the devices of containers",
)
.in_unit("seconds");
