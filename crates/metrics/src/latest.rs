//! Passes the latest snapshot to a registry of metrics, which lives as long as the agent.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::snapshot::Snapshot;

/// The latest snapshot, which all clones share. An agent registers one clone, and passes a new
/// snapshot to another clone before it encodes the registry. Before the first snapshot, the
/// registry lacks the node's metrics.
#[derive(Debug, Clone, Default)]
pub struct Latest(Arc<Mutex<Option<Snapshot>>>);

impl Latest {
    /// Replaces the snapshot.
    pub fn set(&self, snapshot: Snapshot) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(snapshot);
    }
}

impl Collector for Latest {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().map_or(Ok(()), |it| it.encode(encoder))
    }
}
