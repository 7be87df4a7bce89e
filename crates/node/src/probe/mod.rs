//! Finds what the node's rules do to new packets, by sending packets through a copy of the rules.
//!
//! The copy is a temporary network namespace with all tables of `nf_tables` and of legacy iptables,
//! and with links of the same names and indexes as on the node. The copy forwards packets between a
//! namespace that plays a pod and a namespace that plays another host. The kernel itself decides
//! about each packet, so rules of any kind have their effect. No packet leaves the node, and the
//! node does not change. The copy lacks BPF and tc programs, legacy ebtables, and the node's marks
//! and connections.

mod replica;
mod rules;
mod stage;
mod traffic;

use serde_json::{Map, Value};

pub use self::replica::Trial;
use self::rules::Rules;
pub use self::stage::{Path, Stage};
pub use self::traffic::Outcome;

/// The outcomes of the packets that were sent with the links and addresses of one [`Stage`].
#[derive(Debug)]
pub struct Probe {
    /// The links and addresses with which the packets were sent.
    pub stage: Stage,
    /// What happened to the packets, or why none could be sent.
    pub trial: Result<Trial, String>,
}

/// Sends packets with the links and addresses of each stage through a copy of the node's rules.
/// `legacy` names the IP families whose rules of legacy iptables are copied, too.
pub(super) fn probe(stages: &[Stage], legacy: &[String]) -> Vec<Probe> {
    let rules = Rules::read(legacy).map_err(super::message);
    let probe = |stage: &Stage| Probe {
        stage: stage.clone(),
        trial: rules.as_ref().map_err(Clone::clone).and_then(|rules| {
            let trial = replica::run(rules, stage).map_err(super::message)?;
            let permitted = permitted(rules, stage, &trial.outcomes);
            Ok(Trial { permitted, ..trial })
        }),
    };
    stages.iter().map(probe).collect()
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
