//! Gauges of uplinks and MTUs.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use upkeep::Uplinks;

/// Gauges of the part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    mtu: Family<LinkLabel, Gauge>,
    pods: Family<NetworkLabel, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LinkLabel {
    link: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabel {
    network: String,
}

impl Counters {
    /// Registers the gauges. The registry has the prefix `cni_agent`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "uplink_mtu",
            "MTU of a link with a default route",
            Unit::Bytes,
            self.mtu.clone(),
        );
        registry.register(
            "pods_with_other_mtu",
            "Attached pods whose MTU differs from what a new pod would get",
            self.pods.clone(),
        );
    }

    /// Replaces all values.
    pub fn set(&self, read: &Uplinks) {
        self.mtu.clear();
        for uplink in read.links.values() {
            let link = uplink.name.clone();
            let gauge = self.mtu.get_or_create(&LinkLabel { link });
            gauge.set(uplink.mtu.into());
        }
        self.pods.clear();
        for (network, count) in &read.other_mtu {
            let network = network.to_string();
            let gauge = self.pods.get_or_create(&NetworkLabel { network });
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }
}
