//! Plugins' answers to STATUS.

use cni::{SpecVersion, Verb};
use runtime::{Chain, Conflist, Directories};

use super::configuration::{Configuration, Program, Source};

/// An error that a plugin returned for STATUS: no ADD of its network can succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the network's configuration file.
    pub file: String,
    /// Text of the error.
    pub reason: String,
}

pub(super) fn refusals(directories: &Directories, configuration: &Configuration) -> Vec<Refusal> {
    let sources = configuration.sources();
    let asked = sources.filter(|it| can_be_asked(*it, configuration));
    let refusals = asked.filter_map(|source| {
        let network = &Conflist {
            version: SpecVersion::CURRENT,
            ..source.network.list.clone()
        };
        let refusal = Chain::new(network, directories).refusal(source.plugin)?;
        Some(Refusal {
            file: source.file.name.clone(),
            reason: super::message(refusal),
        })
    });
    refusals.collect()
}

/// Returns whether the plugin and its IPAM plugin can be run and support STATUS. They support it if
/// the network's version has this verb, or if both plugins report the newest version of the
/// specification.
fn can_be_asked(source: Source<'_>, configuration: &Configuration) -> bool {
    source.plugin.programs().all(|name| {
        let Some(Program::Found { versions, .. }) = configuration.programs.get(name) else {
            return false;
        };
        let newest = SpecVersion::CURRENT.as_str();
        let mut versions = versions.iter().flatten();
        source.network.list.version >= Verb::Status.since() || versions.any(|it| it == newest)
    })
}
