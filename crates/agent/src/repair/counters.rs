//! Counters of repairs.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use upkeep::Loss;

use super::unrepaired::Unrepaired;
use crate::gauges::{Labels, now, number};

/// Counters of repairs, and gauges of attachments that RELOAD could not restore.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    repairs: Family<Labels, Counter>,
    pub reloads: Counter,
    pub failures: Counter,
    pub declined: Counter,
    /// Number of attachments that RELOAD, a verb of this suite, failed to restore.
    unrepaired: Gauge,
    /// Number of attachments that RELOAD cannot restore, because the containers deleted their
    /// interfaces or addresses.
    left_out: Gauge,
    last: Gauge,
}

impl Counters {
    /// Registers the counters. The registry has the prefix `cni_agent`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Repairs of an nf_tables table that had lost something";
        registry.register("repairs", help, self.repairs.clone());
        let help = "Runs of RELOAD for all or some attachments";
        registry.register("repair_reloads", help, self.reloads.clone());
        let help = "Runs of RELOAD that failed for some attachments";
        registry.register("repair_failures", help, self.failures.clone());
        let help = "Repairs that waited because the administrator's file forbade them";
        registry.register("repair_declined", help, self.declined.clone());
        let help = "Attachments that lack rules which RELOAD could not restore";
        registry.register("repair_unrepaired", help, self.unrepaired.clone());
        let help =
            "Attachments that lack rules because their containers deleted interfaces or addresses";
        registry.register("repair_left_out", help, self.left_out.clone());
        let (name, last) = ("repair_last_timestamp", self.last.clone());
        let help = "Unix time of the last repair that succeeded; 0 before the first one";
        registry.register_with_unit(name, help, Unit::Seconds, last);
    }

    /// Sets the gauges to the number of attachments that RELOAD failed to restore, and to the
    /// number that it cannot restore ([`Unrepaired::left_out`]).
    pub(super) fn set_unrepaired(&self, unrepaired: &Unrepaired) {
        self.unrepaired.set(number(unrepaired.faults()));
        self.left_out.set(number(unrepaired.left_out().len()));
    }

    /// Counts a successful repair of each table that `loss` names, and stores the current time.
    pub fn repaired(&self, loss: &Loss) {
        for table in &loss.tables {
            let labels = vec![("table", (*table).to_owned())];
            self.repairs.get_or_create(&labels).inc();
        }
        self.last.set(now());
    }
}
