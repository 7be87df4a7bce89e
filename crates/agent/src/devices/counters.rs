//! Metrics of the devices that the agent offers to the kubelet: accepted registrations, containers
//! that got devices, and the number of healthy and unhealthy devices of each resource.

use kubelet::device_plugin::{HEALTHY, UNHEALTHY};
use metrics::Latest;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::allocated::{Allocated, Per};
use super::resource::DeviceState;
use crate::gauges::{Labels, registered};

/// Metrics of the devices that the agent offers. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    allocations: Family<Labels, Counter>,
    registrations: Family<Labels, Counter>,
    devices: Latest,
    pub(super) allocated: Allocated,
}

impl Counters {
    /// Adds the counters of allocations and registrations, and the numbers of devices, to
    /// `registry`.
    pub fn new(registry: &mut Registry, per: Per) -> Self {
        let allocated = Allocated::new(per);
        registry.register_collector(Box::new(allocated.clone()));
        Self {
            allocations: registered(
                registry,
                "device_allocations",
                "Containers that the kubelet gave devices to",
            ),
            registrations: registered(
                registry,
                "device_registrations",
                "Registrations that the kubelet accepted",
            ),
            devices: Latest::new(registry),
            allocated,
        }
    }

    /// Returns the counter of containers to which the kubelet gave devices of this resource.
    pub fn allocations(&self, resource: &str) -> Counter {
        self.allocations.get_or_create(&of(resource)).clone()
    }

    /// Returns the counter of registrations of this resource that the kubelet accepted.
    pub fn registrations(&self, resource: &str) -> Counter {
        self.registrations.get_or_create(&of(resource)).clone()
    }

    /// Replaces the numbers of healthy and unhealthy devices of all resources.
    pub fn set<'n>(&self, states: impl IntoIterator<Item = (&'n str, DeviceState)>) {
        let counts = states.into_iter().flat_map(|(resource, state)| {
            [HEALTHY, UNHEALTHY].map(|health| {
                let is_it = health == state.health();
                ([resource, health], if is_it { state.count } else { 0 })
            })
        });
        self.devices
            .set([DEVICES.by(["resource", "health"], counts)]);
    }
}

fn of(resource: &str) -> Labels {
    vec![("resource", resource.to_owned())]
}

const DEVICES: metrics::Family = metrics::Family::gauges(
    "devices",
    "Devices that the kubelet may allocate, or may not",
);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::gauges::tests::expect_whole;

    #[test]
    fn every_scrape_counts_each_device_once_while_the_health_changes() {
        let mut registry = Registry::with_prefix("cni_agent");
        let counters = Counters::new(&mut registry, Per::Container);
        let is_healthy = AtomicBool::new(false);
        // Of the lines for healthy and unhealthy devices, one has the value 5 and the other one 0.
        let is_whole = |text: &str| text.lines().filter(|it| it.ends_with("} 5")).count() == 1;
        expect_whole(&registry, is_whole, || {
            let state = DeviceState {
                count: 5,
                is_healthy: is_healthy.fetch_not(Ordering::Relaxed),
                numa_node: None,
            };
            counters.set([("example.org/tun", state)]);
        });
    }
}
