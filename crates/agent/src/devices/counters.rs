//! Metrics of the devices that the agent offers to the kubelet: accepted registrations, containers
//! that got devices, and the number of healthy and unhealthy devices of each resource.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use kubelet::device_plugin::{HEALTHY, UNHEALTHY};

use super::resource::Stock;
use crate::gauges::{Described, Gauges, Labels};

/// Metrics of the devices that the agent offers. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    allocations: Family<Labels, Counter>,
    registrations: Family<Labels, Counter>,
    devices: Gauges,
}

impl Counters {
    /// Adds the counters of allocations and registrations, and the numbers of devices, to
    /// `registry`.
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
        let help = "Devices that the kubelet may allocate, or may not";
        let described = Described::counts("devices", help);
        self.devices.register(registry, described);
    }

    /// Returns the counter of containers to which the kubelet gave devices of this resource.
    pub fn allocations(&self, resource: &str) -> Counter {
        self.allocations.get_or_create(&of(resource)).clone()
    }

    /// Returns the counter of registrations of this resource that the kubelet accepted.
    pub fn registrations(&self, resource: &str) -> Counter {
        self.registrations.get_or_create(&of(resource)).clone()
    }

    /// Sets the numbers of healthy and unhealthy devices of this resource.
    pub fn set(&self, resource: &str, stock: Stock) {
        self.devices.set([HEALTHY, UNHEALTHY].map(|health| {
            let count = if health == stock.health() {
                stock.count
            } else {
                0
            };
            (of_health(resource, health), count.into())
        }));
    }
}

fn of(resource: &str) -> Labels {
    vec![("resource", resource.to_owned())]
}

fn of_health(resource: &str, health: &str) -> Labels {
    let resource = ("resource", resource.to_owned());
    vec![resource, ("health", health.to_owned())]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::gauges::tests::expect_whole;

    #[test]
    fn every_scrape_counts_each_device_once_while_the_health_changes() {
        let mut registry = Registry::with_prefix("cni_agent");
        let counters = Counters::default();
        counters.register(&mut registry);
        let is_healthy = AtomicBool::new(false);
        // Of the lines for healthy and unhealthy devices, one has the value 5 and the other one 0.
        let is_whole = |text: &str| text.lines().filter(|it| it.ends_with("} 5")).count() == 1;
        expect_whole(&registry, is_whole, || {
            let stock = Stock {
                count: 5,
                is_healthy: is_healthy.fetch_not(Ordering::Relaxed),
                numa_node: None,
            };
            counters.set("example.org/tun", stock);
        });
    }
}
