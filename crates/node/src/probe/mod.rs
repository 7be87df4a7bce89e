//! Finds what the node's rules do to new packets, by sending packets through a copy of the rules.
//!
//! The copy is a temporary network namespace with all tables of `nf_tables` and of legacy iptables,
//! and with links of the same names and indexes as on the node. It forwards between a namespace
//! that stands for a pod and a namespace that stands for another host. The kernel itself decides
//! about each packet, so rules of any kind have their effect. No packet leaves the node, and the
//! node does not change. The copy lacks BPF and tc programs, legacy ebtables, and the node's marks
//! and connections.

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
    /// Whether the family is IPv4; otherwise it is IPv6.
    pub is_ipv4: bool,
    /// The outcome of each path, or why the trial failed.
    pub fates: Result<Vec<(Path, Fate)>, String>,
}

/// Sends the packets of each stage through a copy of the node's rules. `legacy` names the families
/// whose rules of legacy iptables are copied, too.
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
