//! Gauges and counters of the part `cluster`.

use cluster::Applied;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::gauges::{number, registered};

/// Gauges and counters of the part `cluster`.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    nodes: Gauge,
    routes: Gauge,
    direct_routes: Gauge,
    problems: Gauge,
    changes: Counter,
    is_connected: Gauge,
}

impl Counters {
    /// Registers the metrics. The registry has the prefix `cni_agent`.
    pub fn new(registry: &mut Registry) -> Self {
        Self {
            nodes: registered(
                registry,
                "cluster_nodes",
                "Nodes of the last list of the API server",
            ),
            routes: registered(registry, "cluster_routes", "Routes to pods of other nodes"),
            direct_routes: registered(
                registry,
                "cluster_direct_routes",
                "Routes to pods of other nodes without a tunnel",
            ),
            problems: registered(
                registry,
                "cluster_problems",
                "Reasons why pod networks of other nodes lack the desired route",
            ),
            changes: registered(
                registry,
                "cluster_route_changes",
                "Routes, neighbours and devices that the agent created, replaced or removed",
            ),
            is_connected: registered(
                registry,
                "cluster_api_server_connected",
                "1 while the API server sends changes of nodes",
            ),
        }
    }

    /// Sets the values after the routes were set.
    pub fn set(&self, nodes: usize, applied: &Applied) {
        self.nodes.set(number(nodes));
        self.routes.set(number(applied.routes));
        self.direct_routes.set(number(applied.direct_routes));
        self.problems.set(number(applied.problems.len()));
        self.changes
            .inc_by(applied.changes.try_into().unwrap_or(u64::MAX));
    }

    /// Sets whether the API server sends changes.
    pub fn set_connected(&self, is_connected: bool) {
        self.is_connected.set(is_connected.into());
    }
}
