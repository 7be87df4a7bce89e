//! What plugins say when they are asked for STATUS.

use cni::{SpecVersion, Verb};
use runtime::{Cache, Chain, Conflist, Directories};

use super::configuration::{Configuration, Program, Source};

/// A plugin that says that no ADD could succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The file that it stands in.
    pub file: String,
    /// What it says.
    pub reason: String,
}

pub(super) fn refusals(directories: &Directories, configuration: &Configuration) -> Vec<Refusal> {
    let cache = Cache::new(&directories.cache);
    let asked = configuration
        .sources()
        .filter(|it| can_be_asked(*it, configuration));
    let refusals = asked.filter_map(|source| {
        let network = Conflist {
            version: SpecVersion::CURRENT,
            plugins: vec![source.plugin.clone()],
            ..source.network.list.clone()
        };
        let chain = Chain {
            network: &network,
            directory: &directories.networks,
            path: &directories.plugins,
            cache: &cache,
        };
        let refusal = chain.refusal()?;
        Some(Refusal {
            file: source.file.name.clone(),
            reason: super::words(refusal),
        })
    });
    refusals.collect()
}

/// It can be run, and its network or it itself is new enough to have STATUS.
fn can_be_asked(source: Source<'_>, configuration: &Configuration) -> bool {
    source.programs().iter().all(|name| {
        let Some(Program::Found { versions, .. }) = configuration.programs.get(*name) else {
            return false;
        };
        let newest = SpecVersion::CURRENT.as_str();
        let mut versions = versions.iter().flatten();
        source.network.list.version >= Verb::Status.since() || versions.any(|it| it == newest)
    })
}
