//! `reload`: restores rules that a reload of the host's firewall removed, for every cached and live
//! attachment.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context as _, anyhow, ensure};
use cni::{Attachment, NetworkName, SearchPath, Verb, note};
use runtime::{Cache, Chain, Conflist, Directories, Entry, may_exist};

/// Calls RELOAD of the plugins, for all networks or for `only`.
///
/// # Errors
/// Some attachments could not be reloaded, each of which is reported on standard error. The cache
/// cannot be read. The network does not exist.
pub fn reload(directories: &Directories, only: Option<&NetworkName>) -> anyhow::Result<()> {
    let cache = Cache::new(&directories.cache);
    let mut remembered = Vec::new();
    for entry in cache.entries()? {
        match entry {
            Ok(entry) => remembered.push(entry),
            Err(error) => note(format_args!("{error:#}: no entry, skipped")),
        }
    }
    if let Some(only) = only {
        remembered.retain(|(attachment, _)| attachment.network == *only);
        if remembered.is_empty() {
            // The name may be misspelt.
            Conflist::find(&directories.networks, only.as_str())?;
        }
    }
    let remembered = remembered.iter().map(|(attachment, entry)| Remembered {
        attachment,
        entry,
        network: network(directories, attachment, entry),
    });
    let remembered: Vec<_> = remembered.collect();
    let host = Host {
        directory: &directories.networks,
        path: &directories.plugins,
        cache: &cache,
        reloading: reloading(&directories.plugins, &remembered),
    };
    let outcomes = side_by_side(&remembered, |it| {
        (&it.attachment.network, host.outcome_of(it))
    });
    report(&outcomes)
}

/// An attachment with an entry in the cache.
struct Remembered<'a> {
    attachment: &'a Attachment,
    entry: &'a Entry,
    network: anyhow::Result<Conflist>,
}

/// The outcome for an attachment.
enum Outcome {
    Reloaded,
    /// None of its plugins has rules in a firewall.
    Nothing,
    /// Its sandbox no longer exists.
    Gone,
    Failed,
}

/// The environment of RELOAD.
struct Host<'a> {
    directory: &'a Path,
    path: &'a SearchPath,
    cache: &'a Cache,
    /// The plugins that support RELOAD.
    reloading: BTreeSet<String>,
}

impl Host<'_> {
    fn outcome_of(&self, it: &Remembered<'_>) -> Outcome {
        let is_gone = || {
            let is_forgotten = matches!(self.cache.read(it.attachment), Ok(None));
            is_forgotten || !may_exist(it.entry.netns())
        };
        match self.reload(it) {
            Ok(outcome) => outcome,
            // A DEL may have run meanwhile.
            Err(_) if is_gone() => Outcome::Gone,
            Err(error) => {
                note(format_args!("{}: {error:#}", it.attachment));
                Outcome::Failed
            }
        }
    }

    fn reload(&self, it: &Remembered<'_>) -> anyhow::Result<Outcome> {
        let netns = it.entry.netns();
        if !may_exist(netns) {
            return Ok(Outcome::Gone);
        }
        let network = it.network.as_ref().map_err(|error| anyhow!("{error:#}"))?;
        let mut plugins = network.plugins.iter();
        if !plugins.any(|plugin| self.reloading.contains(&plugin.program)) {
            return Ok(Outcome::Nothing);
        }
        ensure!(
            !netns.as_os_str().is_empty(),
            "its entry in the cache names no namespace"
        );
        let chain = Chain {
            network,
            directory: self.directory,
            path: self.path,
            cache: self.cache,
        };
        let sandbox = it.entry.sandbox(it.attachment);
        chain.reload((&sandbox, it.entry), &self.reloading)?;
        Ok(Outcome::Reloaded)
    }
}

/// Returns the configuration of the ADD, or else the current one of that name.
fn network(
    directories: &Directories,
    attachment: &Attachment,
    entry: &Entry,
) -> anyhow::Result<Conflist> {
    match entry.network(&directories.networks)? {
        Some(network) => Ok(network),
        None => Conflist::find(&directories.networks, attachment.network.as_str())
            .context("its entry in the cache has no configuration"),
    }
}

/// Returns the plugins that support RELOAD, and those that cannot be asked, so their attachments
/// report the error. Plugins of other suites without RELOAD are reported on standard error.
fn reloading(path: &SearchPath, remembered: &[Remembered<'_>]) -> BTreeSet<String> {
    let networks = remembered.iter().filter_map(|it| it.network.as_ref().ok());
    let plugins = networks.flat_map(|network| &network.plugins);
    let mut programs: BTreeSet<_> = plugins.map(|it| it.program.clone()).collect();
    let verbs = |program: &String| runtime::abilities(path, program).map(|it| it.verbs);
    programs.retain(|program| match verbs(program) {
        Ok(Some(verbs)) => verbs.iter().any(|verb| verb == Verb::Reload.as_str()),
        Ok(None) => {
            note(format_args!(
                "plugin {program} does not support RELOAD: its rules are not restored"
            ));
            false
        }
        Err(_) => true,
    });
    programs
}

/// Runs `work` on all items, with one thread per processor.
fn side_by_side<'a, T: Sync, R: Send>(all: &'a [T], work: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || all.get(next.fetch_add(1, Ordering::Relaxed));
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let worker = || std::iter::from_fn(take).map(&work).collect::<Vec<_>>();
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        let done = workers.into_iter().map(ScopedJoinHandle::join);
        done.flat_map(|it| it.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

fn report(outcomes: &[(&NetworkName, Outcome)]) -> anyhow::Result<()> {
    let count = |is_it: fn(&Outcome) -> bool| {
        let mut networks = BTreeMap::<_, usize>::new();
        for (network, _) in outcomes.iter().filter(|(_, outcome)| is_it(outcome)) {
            *networks.entry(network).or_default() += 1;
        }
        let all: usize = networks.values().sum();
        let each = networks
            .iter()
            .map(|(name, count)| format!("{name} {count}"));
        let each: Vec<_> = each.collect();
        match each.as_slice() {
            [] => "0".to_owned(),
            each => format!("{all} ({})", each.join(", ")),
        }
    };
    note(format_args!(
        "reloaded: {}; sandbox gone: {}; nothing to reload: {}",
        count(|it| matches!(it, Outcome::Reloaded)),
        count(|it| matches!(it, Outcome::Gone)),
        count(|it| matches!(it, Outcome::Nothing)),
    ));
    let failed = count(|it| matches!(it, Outcome::Failed));
    ensure!(failed == "0", "failed: {failed}");
    Ok(())
}
