//! Gauges of the uplinks' MTUs, and of the pods with an outdated MTU.

use prometheus_client::registry::{Registry, Unit};
use upkeep::Uplinks;

use crate::gauges::{Described, Gauges, number};

/// Gauges of the uplinks' MTUs, and of the numbers of pods with an outdated MTU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    mtu: Gauges,
    pods: Gauges,
}

impl Counters {
    /// Registers the gauges. The registry has the prefix `cni_agent`.
    pub fn register(&self, registry: &mut Registry) {
        let mtu = Described {
            name: "uplink_mtu",
            help: "MTU of a link with a default route",
            unit: Some(Unit::Bytes),
        };
        self.mtu.register(registry, mtu);
        let help = "Attached pods whose MTU differs from what a new pod would get";
        let described = Described::counts("pods_with_other_mtu", help);
        self.pods.register(registry, described);
    }

    /// Replaces the values of all gauges by the MTUs and the numbers of pods in `read`.
    pub fn set(&self, read: &Uplinks) {
        let links = read.links.values();
        let mtus = links.map(|it| (vec![("link", it.name.clone())], it.mtu.into()));
        self.mtu.replace(mtus);
        let networks = read.other_mtu.iter();
        let pods = networks.map(|(it, count)| (vec![("network", it.to_string())], number(*count)));
        self.pods.replace(pods);
    }
}

#[cfg(test)]
mod tests {
    use upkeep::Uplink;

    use super::*;
    use crate::gauges::tests::expect_whole;

    #[test]
    fn no_scrape_is_without_a_gauge_that_is_set_again() {
        let mut registry = Registry::with_prefix("cni_agent");
        let counters = Counters::default();
        counters.register(&mut registry);
        let uplink = Uplink {
            name: "eth0".to_owned(),
            mtu: 1500,
            addresses: std::collections::BTreeSet::new(),
        };
        let read = Uplinks {
            links: [(2, uplink)].into(),
            other_mtu: [("pods".parse().unwrap(), 3)].into(),
        };
        let lines = [
            "cni_agent_uplink_mtu_bytes{link=\"eth0\"} 1500",
            "cni_agent_pods_with_other_mtu{network=\"pods\"} 3",
        ];
        let is_whole = |text: &str| lines.iter().all(|it| text.lines().any(|line| line == *it));
        expect_whole(&registry, is_whole, || counters.set(&read));
    }
}
