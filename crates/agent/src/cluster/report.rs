//! Reports what the part `cluster` found: on standard error, by health and by metrics.

use std::collections::BTreeSet;

use cluster::{Applied, Problem};
use cni::note;

use super::counters::Counters;
use crate::health::Health;

/// Where the part `cluster` reports.
pub(super) struct Report {
    health: Health,
    counters: Counters,
    /// The problems that are on standard error already.
    problems: BTreeSet<Problem>,
}

impl Report {
    pub fn new(health: Health, counters: Counters) -> Self {
        Self {
            health,
            counters,
            problems: BTreeSet::new(),
        }
    }

    /// Sets or ends a failure of the part with this name.
    pub fn failure(&self, part: &'static str, failure: Option<String>) {
        self.health.set(part, failure);
    }

    /// The same with an error.
    pub fn error(&self, part: &'static str, error: Option<&anyhow::Error>) {
        self.failure(part, error.map(|it| format!("{it:#}")));
    }

    /// Sets or ends the failure of the API server.
    pub fn api(&self, part: &'static str, error: Option<&anyhow::Error>) {
        self.counters.set_connected(error.is_none());
        self.error(part, error);
    }

    /// Reports the routes, and writes new problems to standard error. They are no failures of this
    /// node, which would delay an update of all agents.
    pub fn applied(&mut self, nodes: usize, applied: &Applied) {
        self.counters.set(nodes, applied);
        let new: Vec<_> = applied.problems.difference(&self.problems).collect();
        for problem in new.iter().take(MOST_LINES) {
            note(format_args!("cluster: {problem}"));
        }
        if let Some(more) = new.len().checked_sub(MOST_LINES).filter(|it| *it > 0) {
            note(format_args!("cluster: {more} more nodes like these"));
        }
        self.problems.clone_from(&applied.problems);
    }
}

/// The number of problems that one reading writes to standard error.
const MOST_LINES: usize = 20;
