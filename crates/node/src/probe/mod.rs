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

use self::rules::Rules;
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

/// Sends packets through a copy of the rules, which include those of legacy iptables for these families.
pub(super) fn probe(stages: &[Stage], legacy: &[String]) -> Vec<Probe> {
    let rules = Rules::read(legacy).map_err(super::message);
    let fates = |stage| match &rules {
        Ok(rules) => replica::run(rules, stage).map_err(super::message),
        Err(reason) => Err(reason.clone()),
    };
    let probes = stages.iter().map(|stage| Probe {
        bridge: stage.bridge.name.clone(),
        is_ipv4: stage.pod.is_ipv4(),
        fates: fates(stage),
    });
    probes.collect()
}
