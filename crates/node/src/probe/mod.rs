//! Outcomes of new packets under the node's rules, found by sending packets through a copy of the rules.
//!
//! The copy is a temporary namespace with all tables of `nf_tables` and of legacy iptables, and with links of the same
//! names and indexes. It is between a namespace for a pod and a namespace for another host. The kernel itself decides
//! about each packet, so all kinds of rules, sets and matches count. No packet leaves the node, and the node does not
//! change. The copy lacks BPF and tc programs, legacy ebtables, and the node's marks and connections.

mod legacy;
mod replica;
mod rules;
mod stage;
mod traffic;

pub use self::rules::Rules;
pub use self::stage::{Path, Protocol, Stage};
pub use self::traffic::Fate;

/// Outcomes for the pods of a bridge and a family.
#[derive(Debug)]
pub struct Probe {
    /// The bridge.
    pub bridge: String,
    /// The family is IPv4.
    pub is_ipv4: bool,
    /// The outcome of each path, or why the trial failed.
    pub fates: Result<Vec<(Path, Fate)>, String>,
}

impl Rules {
    /// Sends packets through a copy of the rules.
    pub fn probe(&self, stage: &Stage) -> Probe {
        let fates = replica::run(self, stage).map_err(super::message);
        Probe::new(stage, fates)
    }
}

impl Probe {
    /// Returns the outcome of a trial that failed for this reason.
    pub fn failed(stage: &Stage, reason: String) -> Self {
        Self::new(stage, Err(reason))
    }

    fn new(stage: &Stage, fates: Result<Vec<(Path, Fate)>, String>) -> Self {
        Self {
            bridge: stage.bridge.name.clone(),
            is_ipv4: stage.pod.is_ipv4(),
            fates,
        }
    }
}
