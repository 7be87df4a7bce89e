//! Gauges of the uplinks' MTUs, and of the pods with an outdated MTU.

use metrics::{Family, Latest};
use prometheus_client::registry::Registry;
use upkeep::Uplinks;

/// Gauges of the uplinks' MTUs, and of the numbers of pods with an outdated MTU.
#[derive(Debug, Clone)]
pub(crate) struct Counters(Latest);

impl Counters {
    /// Registers the gauges. The registry has the prefix `cni_agent`.
    pub fn new(registry: &mut Registry) -> Self {
        Self(Latest::new(registry))
    }

    /// Replaces the values of all gauges by the MTUs and the numbers of pods in `read`.
    pub fn set(&self, read: &Uplinks) {
        let mtus = read.links.values().map(|it| ([it.name.as_str()], it.mtu));
        let pods = read.other_mtu.iter();
        let pods = pods.map(|(network, count)| ([network.as_str()], *count));
        self.0
            .set([MTU.by(["link"], mtus), PODS.by(["network"], pods)]);
    }
}

const MTU: Family =
    Family::gauges("uplink_mtu", "MTU of a link with a default route").in_unit("bytes");

const PODS: Family = Family::gauges(
    "pods_with_other_mtu",
    "Attached pods whose MTU differs from what a new pod would get",
);

#[cfg(test)]
mod tests {
    use upkeep::Uplink;

    use super::*;
    use crate::gauges::tests::expect_whole;

    #[test]
    fn no_scrape_is_without_a_gauge_that_is_set_again() {
        let mut registry = Registry::with_prefix("cni_agent");
        let counters = Counters::new(&mut registry);
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
