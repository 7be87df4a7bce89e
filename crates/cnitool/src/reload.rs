//! `reload`: what a reload of the host's firewall took away, put back for every attachment that
//! is remembered and lives.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context as _, anyhow, ensure};
use cni::{Attachment, NetworkName, SearchPath, Verb, note};
use runtime::{Cache, Chain, Conflist, Directories, Entry, may_exist};

/// Has the plugins put back what they had in the firewall, of all networks or of `only`.
///
/// # Errors
/// Some attachments could not be reloaded, each of which is told on standard error; the cache
/// cannot be read; there is no such network.
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
            // It may be a slip of the pen.
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

/// An attachment of which there is an entry in the cache.
struct Remembered<'a> {
    attachment: &'a Attachment,
    entry: &'a Entry,
    network: anyhow::Result<Conflist>,
}

/// What became of it.
enum Outcome {
    Reloaded,
    /// None of its plugins has anything in a firewall.
    Nothing,
    /// Its sandbox is no more.
    Gone,
    Failed,
}

/// Where attachments are reloaded.
struct Host<'a> {
    directory: &'a Path,
    path: &'a SearchPath,
    cache: &'a Cache,
    /// The plugins that know the verb.
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
            // A DEL may have been at work meanwhile.
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

/// The list that ADD went by, or the one of that name now.
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

/// The plugins that know the verb, and those that cannot be asked, whose attachments will say so.
/// Of foreign ones it is told that they do not.
fn reloading(path: &SearchPath, remembered: &[Remembered<'_>]) -> BTreeSet<String> {
    let networks = remembered.iter().filter_map(|it| it.network.as_ref().ok());
    let plugins = networks.flat_map(|network| &network.plugins);
    let mut programs: BTreeSet<_> = plugins.map(|it| it.program.clone()).collect();
    let verbs = |program: &String| runtime::abilities(path, program).map(|it| it.verbs);
    programs.retain(|program| match verbs(program) {
        Ok(Some(verbs)) => verbs.iter().any(|verb| verb == Verb::Reload.as_str()),
        Ok(None) => {
            note(format_args!(
                "plugin {program} knows no RELOAD: nothing of it is put back"
            ));
            false
        }
        Err(_) => true,
    });
    programs
}

/// Does `work` on all of them, as many at once as there are processors.
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
