//! `reload`: restores rules that a reload of the host's firewall removed, for every cached and live
//! attachment.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context as _, anyhow, ensure};
use cni::{Attachment, NetworkName, SearchPath, Verb, note};
use runtime::{Chain, Conflist, Directories, Entry, may_exist};

/// Calls RELOAD of the plugins for every cached and live attachment of all networks, or of the
/// network `only`.
///
/// # Errors
/// Some attachments could not be reloaded; each of them is reported on standard error. The cache
/// cannot be read, or the network does not exist.
pub fn reload(directories: &Directories, only: Option<&NetworkName>) -> anyhow::Result<()> {
    let is_meant = |it: &Attachment| only.is_none_or(|only| *only == it.network);
    let remembered = remembered(directories, is_meant)?;
    if let Some(only) = only
        && remembered.is_empty()
    {
        // No attachment of this network is cached. Fails if the network is not configured either,
        // because the name may be misspelt.
        Conflist::find(&directories.networks, only.as_str())?;
    }
    reload_remembered(directories, &remembered)
}

/// Calls RELOAD like [`reload`], for the attachments for which `is_meant` returns true.
///
/// # Errors
/// As [`reload`].
pub fn reload_each(
    directories: &Directories,
    is_meant: impl Fn(&Attachment) -> bool,
) -> anyhow::Result<()> {
    reload_remembered(directories, &remembered(directories, is_meant)?)
}

/// Returns the cached attachments for which `is_meant` returns true. Files that are no entries are
/// reported on standard error.
fn remembered(
    directories: &Directories,
    is_meant: impl Fn(&Attachment) -> bool,
) -> anyhow::Result<Vec<Remembered>> {
    let mut remembered = Vec::new();
    for entry in directories.cache.entries()? {
        match entry {
            Ok((attachment, entry)) if is_meant(&attachment) => {
                remembered.push(Remembered::new(directories, attachment, entry));
            }
            Ok(_) => {}
            Err(error) => note(format_args!("{error:#}: no entry, skipped")),
        }
    }
    Ok(remembered)
}

fn reload_remembered(directories: &Directories, remembered: &[Remembered]) -> anyhow::Result<()> {
    let reloading = reloading(&directories.plugins, remembered);
    let outcomes = side_by_side(remembered, |it| {
        let outcome = it.outcome(directories, &reloading);
        (&it.attachment.network, outcome)
    });
    report(&outcomes)
}

/// Calls [`reload`] at once, and after each reload and each start of firewalld. SIGTERM may end
/// this process at any moment, because the running plugins complete their work and RELOAD may be
/// repeated.
///
/// # Errors
/// The system bus has an invalid address.
pub fn follow_firewalld(
    directories: &Directories,
    only: Option<&NetworkName>,
) -> anyhow::Result<()> {
    let Err(error) = hear_firewalld(|| {
        if let Err(error) = reload(directories, only) {
            note(format_args!("cnitool: {error:#}"));
        }
    });
    Err(error)
}

/// Calls `react` at once, and after each reload and each start of firewalld.
///
/// # Errors
/// The system bus has an invalid address.
pub fn hear_firewalld(react: impl FnMut()) -> anyhow::Result<Infallible> {
    firewall::follow(react)
}

/// An attachment with an entry in the cache.
struct Remembered {
    attachment: Attachment,
    entry: Entry,
    /// The configuration of the ADD. If it is not cached, the current configuration of the network.
    network: anyhow::Result<Conflist>,
}

/// What RELOAD did for an attachment.
#[derive(PartialEq)]
enum Outcome {
    Reloaded,
    /// None of the attachment's plugins supports RELOAD, so there is nothing to restore.
    Nothing,
    /// The attachment's sandbox no longer exists.
    Gone,
    Failed,
}

impl Remembered {
    fn new(directories: &Directories, attachment: Attachment, entry: Entry) -> Self {
        let now = || {
            let network = Conflist::find(&directories.networks, attachment.network.as_str());
            network.context("its entry in the cache has no configuration")
        };
        let then = entry.network(&directories.networks);
        Self {
            network: then.and_then(|it| it.map_or_else(now, Ok)),
            attachment,
            entry,
        }
    }

    fn outcome(&self, directories: &Directories, reloading: &BTreeSet<String>) -> Outcome {
        let is_gone = || {
            let is_forgotten = matches!(directories.cache.read(&self.attachment), Ok(None));
            is_forgotten || !may_exist(self.entry.netns())
        };
        match self.reload(directories, reloading) {
            Ok(outcome) => outcome,
            // A DEL may have run since the cache was read, so the error is no fault.
            Err(_) if is_gone() => Outcome::Gone,
            Err(error) => {
                note(format_args!("{}: {error:#}", self.attachment));
                Outcome::Failed
            }
        }
    }

    /// Calls RELOAD of the attachment's plugins that are in `reloading`.
    fn reload(
        &self,
        directories: &Directories,
        reloading: &BTreeSet<String>,
    ) -> anyhow::Result<Outcome> {
        let netns = self.entry.netns();
        if !may_exist(netns) {
            return Ok(Outcome::Gone);
        }
        let network = self.network.as_ref().map_err(|it| anyhow!("{it:#}"))?;
        let mut plugins = network.plugins.iter();
        if !plugins.any(|it| reloading.contains(&it.program)) {
            return Ok(Outcome::Nothing);
        }
        ensure!(
            !netns.as_os_str().is_empty(),
            "its entry in the cache names no namespace"
        );
        let sandbox = self.entry.sandbox(&self.attachment);
        let chain = Chain::new(network, directories);
        chain.reload(&sandbox, &self.entry, reloading)?;
        Ok(Outcome::Reloaded)
    }
}

/// Returns the plugins that support RELOAD. Also returns those that cannot be asked for their
/// verbs, so that RELOAD of their attachments fails and reports the error. Reports on standard
/// error which plugins of other suites lack RELOAD.
fn reloading(path: &SearchPath, remembered: &[Remembered]) -> BTreeSet<String> {
    let networks = remembered.iter().filter_map(|it| it.network.as_ref().ok());
    let plugins = networks.flat_map(|network| &network.plugins);
    let mut programs: BTreeSet<_> = plugins.map(|it| it.program.clone()).collect();
    let verbs = |program: &String| runtime::abilities(path, program).map(|it| it.verbs);
    programs.retain(|program| match verbs(program) {
        Ok(Some(verbs)) => verbs.iter().any(|verb| *verb == Verb::Reload.to_string()),
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

/// Calls `work` for all items in parallel and returns the results. Uses one thread for each
/// processor, at most [`MOST_THREADS`].
fn side_by_side<'a, T: Sync, R: Send>(all: &'a [T], work: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || all.get(next.fetch_add(1, Ordering::Relaxed));
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let processors = processors.min(MOST_THREADS);
    thread::scope(|scope| {
        let worker = || std::iter::from_fn(take).map(&work).collect::<Vec<_>>();
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(ScopedJoinHandle::join);
        results
            .flat_map(|it| it.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

fn report(outcomes: &[(&NetworkName, Outcome)]) -> anyhow::Result<()> {
    let count = |wanted| {
        let mut networks = BTreeMap::<_, usize>::new();
        for (network, _) in outcomes.iter().filter(|it| it.1 == wanted) {
            *networks.entry(network).or_default() += 1;
        }
        let all: usize = networks.values().sum();
        let each = networks
            .iter()
            .map(|(name, count)| format!("{name} {count}"));
        let each: Vec<_> = each.collect();
        match all {
            0 => "0".to_owned(),
            all => format!("{all} ({})", each.join(", ")),
        }
    };
    note(format_args!(
        "reloaded: {}; sandbox gone: {}; nothing to reload: {}",
        count(Outcome::Reloaded),
        count(Outcome::Gone),
        count(Outcome::Nothing),
    ));
    let failed = count(Outcome::Failed);
    ensure!(failed == "0", "failed: {failed}");
    Ok(())
}

/// Plugins wait for one lock of `nf_tables`, so more of them at once cost only memory.
const MOST_THREADS: usize = 8;
