//! Counters of repairs.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use upkeep::Loss;

use super::unrepaired::Unrepaired;

/// Counters of the part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    repairs: Family<TableLabel, Counter>,
    pub reloads: Counter,
    pub failures: Counter,
    pub declined: Counter,
    /// Attachments that lack rules by a fault.
    unrepaired: Gauge,
    /// Attachments whose containers deleted their interfaces or addresses.
    left_out: Gauge,
    last: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TableLabel {
    table: &'static str,
}

impl Counters {
    /// Registers the counters. The registry has the prefix `cni_agent`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "repairs",
            "Repairs of an nf_tables table that had lost something",
            self.repairs.clone(),
        );
        registry.register(
            "repair_reloads",
            "Runs of RELOAD for all or some attachments",
            self.reloads.clone(),
        );
        registry.register(
            "repair_failures",
            "Runs of RELOAD that failed for some attachments",
            self.failures.clone(),
        );
        registry.register(
            "repair_declined",
            "Repairs that waited because the administrator's file forbade them",
            self.declined.clone(),
        );
        registry.register(
            "repair_unrepaired",
            "Attachments that lack rules which RELOAD could not restore",
            self.unrepaired.clone(),
        );
        registry.register(
            "repair_left_out",
            "Attachments that lack rules because their containers deleted interfaces or addresses",
            self.left_out.clone(),
        );
        registry.register_with_unit(
            "repair_last_timestamp",
            "Unix time of the last repair that succeeded; 0 before the first one",
            Unit::Seconds,
            self.last.clone(),
        );
    }

    /// Sets the numbers of attachments that lack rules.
    pub(super) fn set_unrepaired(&self, unrepaired: &Unrepaired) {
        let number = |it: usize| i64::try_from(it).unwrap_or(i64::MAX);
        self.unrepaired.set(number(unrepaired.faults()));
        self.left_out.set(number(unrepaired.left_out().len()));
    }

    /// Counts a repair that succeeded.
    pub fn repaired(&self, loss: &Loss) {
        for table in &loss.tables {
            self.repairs.get_or_create(&TableLabel { table }).inc();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |it| it.as_secs());
        self.last.set(i64::try_from(now).unwrap_or(i64::MAX));
    }
}
