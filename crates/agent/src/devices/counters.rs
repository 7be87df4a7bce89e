//! The metrics of the devices.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use kubelet::device_plugin::{HEALTHY, UNHEALTHY};

use super::resource::Stock;

/// The metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    allocations: Family<OfResource, Counter>,
    registrations: Family<OfResource, Counter>,
    devices: Family<OfHealth, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResource {
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfHealth {
    resource: String,
    health: &'static str,
}

impl Counters {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "device_allocations",
            "Containers that the kubelet gave devices to",
            self.allocations.clone(),
        );
        registry.register(
            "device_registrations",
            "Registrations that the kubelet accepted",
            self.registrations.clone(),
        );
        registry.register(
            "devices",
            "Devices that the kubelet may allocate, or may not",
            self.devices.clone(),
        );
    }

    /// Returns the counter of containers with devices of this resource.
    pub fn allocations(&self, resource: &str) -> Counter {
        let labels = OfResource::new(resource);
        self.allocations.get_or_create(&labels).clone()
    }

    /// Returns the counter of registrations of this resource.
    pub fn registrations(&self, resource: &str) -> Counter {
        let labels = OfResource::new(resource);
        self.registrations.get_or_create(&labels).clone()
    }

    /// Sets the numbers of devices of this resource.
    pub fn set(&self, resource: &str, stock: Stock) {
        for health in [HEALTHY, UNHEALTHY] {
            let resource = resource.to_owned();
            let count = if health == stock.health() {
                stock.count
            } else {
                0
            };
            let devices = self.devices.get_or_create(&OfHealth { resource, health });
            devices.set(i64::from(count));
        }
    }
}

impl OfResource {
    fn new(resource: &str) -> Self {
        Self {
            resource: resource.to_owned(),
        }
    }
}
