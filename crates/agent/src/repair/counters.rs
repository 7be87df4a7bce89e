//! Counters of repairs.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use upkeep::MissingObjects;

use super::unrepaired::Unrepaired;
use crate::gauges::{Labels, now, number, registered};

/// Counters of repairs, and gauges of attachments that RELOAD could not restore.
#[derive(Debug, Clone)]
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
    /// 1 while the agent guards 127.0.0.0/8 in the place of portmap's `IPsec` policies, otherwise 0.
    pub guards_localhost: Gauge,
}

impl Counters {
    /// Registers the counters. The registry has the prefix `cni_agent`.
    pub fn new(registry: &mut Registry) -> Self {
        let last = Gauge::default();
        let help = "Unix time of the last repair that succeeded; 0 before the first one";
        registry.register_with_unit("repair_last_timestamp", help, Unit::Seconds, last.clone());
        Self {
            repairs: registered(
                registry,
                "repairs",
                "Repairs of an nf_tables table that had lost something",
            ),
            reloads: registered(
                registry,
                "repair_reloads",
                "Runs of RELOAD for all or some attachments",
            ),
            failures: registered(
                registry,
                "repair_failures",
                "Runs of RELOAD that failed for some attachments",
            ),
            declined: registered(
                registry,
                "repair_declined",
                "Repairs that waited because the administrator's file forbade them",
            ),
            unrepaired: registered(
                registry,
                "repair_unrepaired",
                "Attachments that lack rules which RELOAD could not restore",
            ),
            left_out: registered(
                registry,
                "repair_left_out",
                "Attachments that lack rules because their containers deleted interfaces or addresses",
            ),
            last,
            guards_localhost: registered(registry, "repair_localhost_guard", GUARD),
        }
    }

    /// Sets the gauges to the number of attachments that RELOAD failed to restore, and to the
    /// number that it cannot restore ([`Unrepaired::left_out`]).
    pub(super) fn set_unrepaired(&self, unrepaired: &Unrepaired) {
        self.unrepaired.set(number(unrepaired.faults()));
        self.left_out.set(number(unrepaired.left_out().len()));
    }

    /// Counts a successful repair of each table that `missing` names, and stores the current time.
    pub fn repaired(&self, missing: &MissingObjects) {
        for table in &missing.tables {
            let labels = vec![("table", (*table).to_owned())];
            self.repairs.get_or_create(&labels).inc();
        }
        self.last.set(now());
    }
}

const GUARD: &str = "1 while the agent keeps neighbours off 127.0.0.0/8, otherwise 0";
