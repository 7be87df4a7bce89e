//! Finds what the node's rules do to new packets, by sending packets through a copy of the rules.
//!
//! The copy is a temporary network namespace with all tables of `nf_tables` and of legacy iptables,
//! and with links of the same names and indexes as on the node. The copy forwards packets between a
//! namespace that plays a pod and a namespace that plays another host. The kernel itself decides
//! about each packet, so rules of any kind have their effect. No packet leaves the node, and the
//! node does not change. The copy lacks BPF and tc programs, legacy ebtables, and the node's marks
//! and connections.

mod legacy;
mod replica;
mod rules;
mod stage;
mod traffic;

use std::net::IpAddr;

use nft::RulePlace;
use serde_json::{Map, Value};

use self::rules::Rules;
pub use self::stage::{Access, Path, Stage};
pub use self::traffic::Outcome;

/// The outcomes of the packets that were sent with the links and addresses of one [`Stage`].
#[derive(Debug)]
pub struct Probe {
    /// The links and addresses with which the packets were sent.
    pub stage: Stage,
    /// The outcome on each path, or why no packets could be sent.
    pub outcomes: Result<Vec<(Path, Outcome)>, String>,
    /// Rules of `nf_tables` without which the packets were sent, because the kernel refuses a copy
    /// of them.
    pub left_out: Vec<RulePlace>,
    /// Paths on which packets pass only if the plugin `firewall` permits them. Empty if the
    /// network's list already contains this plugin.
    pub permitted: Vec<Path>,
    /// The address from which another host receives the pod's TCP packets: the pod's own, unless a
    /// rule of the node masquerades it. `None` if none arrived.
    pub sender: Option<IpAddr>,
}

/// Sends packets with the links and addresses of each stage through a copy of the node's rules.
/// `legacy` names the IP families whose rules of legacy iptables are copied, too.
pub(super) fn probe(stages: &[Stage], legacy: &[String]) -> Vec<Probe> {
    let rules = Rules::read(legacy).map_err(super::message);
    let probes = stages.iter().map(|stage| {
        let trial = match &rules {
            Ok(rules) => replica::run(rules, stage).map_err(super::message),
            Err(reason) => Err(reason.clone()),
        };
        let (outcomes, left_out, sender) = match trial {
            Ok(trial) => (Ok(trial.outcomes), trial.left_out, trial.sender),
            Err(reason) => (Err(reason), Vec::new(), None),
        };
        let permitted = match (&rules, &outcomes) {
            (Ok(rules), Ok(outcomes)) => permitted(rules, stage, outcomes),
            _ => Vec::new(),
        };
        Probe {
            stage: stage.clone(),
            outcomes,
            left_out,
            permitted,
            sender,
        }
    });
    probes.collect()
}

/// If a packet did not pass and the network's list lacks the plugin `firewall`, sends all packets
/// again as if the list had this plugin with its default configuration. Returns the paths on which
/// packets passed only this time.
fn permitted(rules: &Rules, stage: &Stage, outcomes: &[(Path, Outcome)]) -> Vec<Path> {
    let dropped = outcomes.iter().filter(|it| it.1 != Outcome::Passed);
    let dropped: Vec<_> = dropped.map(|it| it.0).collect();
    if dropped.is_empty() || stage.permission.is_some() {
        return Vec::new();
    }
    let stage = Stage {
        permission: firewall::Config::read(&Value::Object(Map::new())).ok(),
        ..stage.clone()
    };
    let trial = replica::run(rules, &stage);
    let outcomes = trial.into_iter().flat_map(|it| it.outcomes);
    let passed = outcomes.filter(|it| it.1 == Outcome::Passed).map(|it| it.0);
    passed.filter(|it| dropped.contains(it)).collect()
}
