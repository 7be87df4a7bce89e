//! Metrics of garbage collection.

use cni::NetworkName;
use metrics::Latest;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::gauges::{Labels, now, registered};

/// Counters and gauges of garbage collection. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    removals: Family<Labels, Counter>,
    failures: Family<Labels, Counter>,
    unproven: Latest,
    rounds: Counter,
    /// Rounds that removed nothing because of an error.
    pub failed_rounds: Counter,
    last_success: Gauge,
}

impl Counters {
    /// Adds the counters of removals and rounds, and the gauges, to `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        Self {
            removals: registered(registry, "gc_removals", "Attachments that were removed"),
            failures: registered(
                registry,
                "gc_failures",
                "DELs of stale attachments that failed",
            ),
            unproven: Latest::new(registry),
            rounds: registered(registry, "gc_rounds", "Rounds that judged all attachments"),
            failed_rounds: registered(
                registry,
                "gc_failed_rounds",
                "Rounds that removed nothing because of an error",
            ),
            last_success: registered(
                registry,
                "gc_last_success_timestamp_seconds",
                "When a round last succeeded without a failed DEL, in seconds since 1970",
            ),
        }
    }

    /// Counts the removal of an attachment.
    pub fn removed(&self, network: &NetworkName) {
        self.removals.get_or_create(&labels(network)).inc();
    }

    /// Counts a failed DEL of a stale attachment.
    pub fn failed(&self, network: &NetworkName) {
        self.failures.get_or_create(&labels(network)).inc();
    }

    /// Replaces, for each network, the number of attachments that no runtime lists and that are not
    /// proven gone.
    pub fn set_unproven<'n>(&self, networks: impl Iterator<Item = (&'n NetworkName, usize)>) {
        let counts = networks.map(|(network, count)| ([network.as_str()], count));
        self.unproven.set([UNPROVEN.by(["network"], counts)]);
    }

    /// Counts a round that judged all attachments. `is_clean` means that no DEL failed. In this
    /// case, also sets the time of the last success.
    pub fn round_ended(&self, is_clean: bool) {
        self.rounds.inc();
        if is_clean {
            self.last_success.set(now());
        }
    }
}

fn labels(network: &NetworkName) -> Labels {
    vec![("network", network.to_string())]
}

const UNPROVEN: metrics::Family = metrics::Family::gauges(
    "gc_unproven",
    "Attachments that the runtime does not list, and that are not proven gone",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauges::tests::expect_whole;

    #[test]
    fn no_scrape_is_without_a_gauge_that_is_set_again() {
        let mut registry = Registry::with_prefix("cni_agent");
        let counters = Counters::new(&mut registry);
        let pods = "pods".parse().unwrap();
        let lines = ["cni_agent_gc_unproven{network=\"pods\"} 2"];
        let is_whole = |text: &str| lines.iter().all(|it| text.lines().any(|line| line == *it));
        expect_whole(&registry, is_whole, || {
            counters.set_unproven([(&pods, 2)].into_iter());
        });
    }

    #[test]
    fn counters_are_encoded_with_their_networks() {
        let mut registry = Registry::with_prefix("cni_agent");
        let counters = Counters::new(&mut registry);
        let pods = "pods".parse().unwrap();
        counters.removed(&pods);
        counters.set_unproven([(&pods, 2)].into_iter());
        counters.round_ended(true);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "cni_agent_gc_removals_total{network=\"pods\"} 1",
            "cni_agent_gc_unproven{network=\"pods\"} 2",
            "cni_agent_gc_rounds_total 1",
            "cni_agent_gc_failed_rounds_total 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(
            !text.contains("cni_agent_gc_last_success_timestamp_seconds 0"),
            "{text}"
        );
    }
}
