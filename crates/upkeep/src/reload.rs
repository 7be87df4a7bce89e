//! Calls RELOAD, a verb of this suite, for every cached and live attachment. RELOAD restores rules
//! that a reload of the host's firewall removed.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{anyhow, ensure};
use attach::is_host_end;
use cni::files::Hold;
use cni::{Attachment, NetworkName, SearchPath, Verb, note};
use netlink::{Connection, Link};
use runtime::{Chain, Conflist, Directories, Entry, may_exist};

/// Calls RELOAD of the plugins for every cached and live attachment of all networks, or of the
/// network `only`.
///
/// # Errors
/// - RELOAD failed for some attachments. Each of them is reported on standard error.
/// - The runtimes' cache cannot be read.
/// - `only` is not configured, and no attachment of it is cached.
pub fn reload(directories: &Directories, only: Option<&NetworkName>) -> anyhow::Result<()> {
    let is_meant = |it: &Attachment| only.is_none_or(|only| *only == it.network);
    let reloads = reload_each(directories, &BTreeSet::new(), is_meant)?;
    if let Some(only) = only
        && reloads.0.is_empty()
    {
        // No attachment of `only` is cached. If this network is not configured either, its name may
        // be misspelt, so this call fails.
        Conflist::find(&directories.networks, only.as_str())?;
    }
    for (attachment, reason) in reloads.failed() {
        note!("{attachment}: {reason}");
    }
    note(reloads.summary());
    let failed =
        reloads.count(|it| matches!(it, Outcome::Failed(_) | Outcome::InterfaceMissing(_)));
    ensure!(reloads.failed().next().is_none(), "failed: {failed}");
    Ok(())
}

/// Calls RELOAD, the suite's verb that restores rules, for the cached and live attachments for
/// which `is_meant` returns true, and returns the outcomes. Checks each attachment whose tag is in
/// `left_out` first. If its sandbox no longer has the interface of its ADD, RELOAD cannot succeed,
/// so this function only returns [`Outcome::InterfaceMissing`] for it.
///
/// # Errors
/// The cache cannot be read.
pub fn reload_each(
    directories: &Directories,
    left_out: &BTreeSet<String>,
    is_meant: impl Fn(&Attachment) -> bool,
) -> anyhow::Result<Reloads> {
    let remembered = remembered(directories, is_meant)?;
    let reloading = reloading(&directories.plugins, &remembered);
    let outcomes = side_by_side(&remembered, |remembered| {
        let is_left_out = left_out.contains(&remembered.attachment.owner());
        let still = is_left_out
            .then(|| remembered.missing_interface())
            .flatten();
        let outcome = still.unwrap_or_else(|| remembered.outcome(directories, &reloading));
        (remembered.attachment.clone(), outcome)
    });
    Ok(Reloads(outcomes))
}

/// Returns the cached attachments for which `is_meant` returns true. Skips files in the cache that
/// are not cached results, and reports them on standard error.
fn remembered(
    directories: &Directories,
    is_meant: impl Fn(&Attachment) -> bool,
) -> anyhow::Result<Vec<Remembered>> {
    let mut remembered = Vec::new();
    for entry in directories.cache.entries()? {
        match entry {
            Ok((attachment, entry)) if is_meant(&attachment) => {
                remembered.push(Remembered {
                    network: entry.network_or_current(&directories.networks),
                    attachment,
                    entry,
                });
            }
            Ok(_) => {}
            Err(error) => note!("{error:#}; the file is skipped"),
        }
    }
    Ok(remembered)
}

/// Calls [`reload`] as soon as the system bus answers, and after each reload and each start of
/// firewalld. Returns only with an error. SIGTERM may end this process at any moment, because this
/// function repeats an interrupted RELOAD when the process starts again.
///
/// # Errors
/// The system bus has an invalid address.
pub fn follow_firewalld(
    directories: &Directories,
    only: Option<&NetworkName>,
) -> anyhow::Result<()> {
    let Err(error) = firewall::follow(|| {
        if let Err(error) = reload(directories, only) {
            note!("cnitool: {error:#}");
        }
    });
    Err(error)
}

struct Remembered {
    attachment: Attachment,
    entry: Entry,
    /// The configuration that ADD used or, if that is not cached, the current one of the network.
    network: anyhow::Result<Conflist>,
}

/// What RELOAD did for each attachment.
#[derive(Debug, Default)]
pub struct Reloads(pub Vec<(Attachment, Outcome)>);

/// What RELOAD did for an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All plugins succeeded.
    Reloaded,
    /// None of the attachment's plugins supports RELOAD, so there is nothing to restore.
    Nothing,
    /// The attachment's sandbox no longer exists, or a DEL has removed its cached result meanwhile.
    Gone,
    /// RELOAD failed, or could not be called, for this reason.
    Failed(String),
    /// RELOAD cannot succeed because the sandbox has lost its interface. Contains a message about
    /// this loss.
    InterfaceMissing(String),
}

impl Reloads {
    /// Returns the tags of the attachments that RELOAD restored.
    pub fn reloaded(&self) -> BTreeSet<String> {
        let restored = self.0.iter().filter(|it| it.1 == Outcome::Reloaded);
        restored.map(|(attachment, _)| attachment.owner()).collect()
    }

    /// Returns whether an outcome is [`Outcome::Reloaded`] or [`Outcome::Failed`]. If none is, no
    /// attachment was restored, and the only failures are those of [`Outcome::InterfaceMissing`].
    pub fn has_called(&self) -> bool {
        let is_called = |it: &Outcome| matches!(it, Outcome::Reloaded | Outcome::Failed(_));
        self.0.iter().any(|it| is_called(&it.1))
    }

    /// Returns the attachments with [`Outcome::Failed`] or [`Outcome::InterfaceMissing`], with the reasons.
    fn failed(&self) -> impl Iterator<Item = (&Attachment, &str)> {
        self.0
            .iter()
            .filter_map(|(attachment, outcome)| match outcome {
                Outcome::Failed(reason) | Outcome::InterfaceMissing(reason) => {
                    Some((attachment, &**reason))
                }
                _ => None,
            })
    }

    /// Returns one line with the numbers of attachments that were reloaded, whose sandboxes are
    /// gone, and that needed no RELOAD, in total and by network.
    pub fn summary(&self) -> String {
        format!(
            "reloaded: {}; sandbox gone: {}; nothing to reload: {}",
            self.count(|it| *it == Outcome::Reloaded),
            self.count(|it| *it == Outcome::Gone),
            self.count(|it| *it == Outcome::Nothing),
        )
    }

    fn count(&self, is_wanted: impl Fn(&Outcome) -> bool) -> String {
        let mut networks = BTreeMap::<_, usize>::new();
        for (attachment, _) in self.0.iter().filter(|it| is_wanted(&it.1)) {
            *networks.entry(&attachment.network).or_default() += 1;
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
    }
}

impl Remembered {
    fn outcome(&self, directories: &Directories, reloading: &BTreeSet<String>) -> Outcome {
        let is_forgotten = || matches!(directories.cache.read(&self.attachment), Ok(None));
        match self.reload(directories, reloading) {
            Ok(outcome) => outcome,
            // The cache has no result of the attachment any more, so a DEL has run meanwhile. The
            // error of RELOAD is then no failure.
            Err(_) if is_forgotten() => Outcome::Gone,
            Err(_) if !may_exist(self.entry.netns()) => self.gone(),
            Err(error) => {
                let failed = || Outcome::Failed(format!("{error:#}"));
                self.missing_interface().unwrap_or_else(failed)
            }
        }
    }

    /// Returns the outcome for a sandbox whose path does not exist: [`Outcome::Failed`] if the
    /// attachment's link on the host exists, otherwise [`Outcome::Gone`]. The kernel deletes this
    /// link together with the sandbox, so an existing link shows that the sandbox exists and that
    /// this process cannot see it.
    fn gone(&self) -> Outcome {
        match lasting_link(&self.attachment) {
            Ok(None) => Outcome::Gone,
            Ok(Some(link)) => Outcome::Failed(format!(
                "its namespace {} does not exist here, but its link {link} on the host does",
                self.entry.netns().display()
            )),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }

    fn missing_interface(&self) -> Option<Outcome> {
        // A sandbox that cannot be read does not count as one without its interface.
        let lost = self.lost_interface().ok().flatten();
        lost.map(Outcome::InterfaceMissing)
    }

    /// Returns a message if the sandbox's interface is missing, or if another link has replaced the
    /// one that ADD created. If the result of ADD names no link of the host, only the addresses show
    /// whether the interface is that of ADD, so the function also returns a message if the interface
    /// has lost all of them. Returns `None` if nothing of this is lost, or if the sandbox does not
    /// exist.
    ///
    /// A process with `CAP_NET_ADMIN` in a container can delete the container's interface. Then no
    /// plugin can restore the attachment until the container has the interface again. An interface
    /// without addresses is no such loss if it is the one that ADD created: gVisor, for example,
    /// removes the addresses from the interface, because it has a network stack of its own.
    fn lost_interface(&self) -> anyhow::Result<Option<String>> {
        let interface = self.attachment.interface.as_str();
        let Some((namespace, sandbox)) = Connection::open_if_present(self.entry.netns())? else {
            return Ok(None);
        };
        let Some(link) = sandbox.find_link(interface)? else {
            return Ok(Some(format!("its sandbox has no {interface} any more")));
        };
        let host_links = self.entry.host_links();
        if !host_links.is_empty() {
            let other_end = Connection::open()?.other_end(&link, &namespace)?;
            let is_of_add =
                |it: &Link| host_links.contains(&it.name) || is_host_end(it, &self.attachment);
            let is_of_add = other_end.as_ref().is_some_and(is_of_add);
            let lost = format!("{interface} in its sandbox is not the link that ADD made");
            return Ok((!is_of_add).then_some(lost));
        }
        let present = sandbox.addresses(link.index)?;
        let is_present = |address| present.iter().any(|it| it.address.ip() == address);
        let reported = self.entry.reported().ips;
        let is_kept = reported.is_empty() || reported.iter().any(|it| is_present(it.address.ip()));
        let lost = format!("{interface} in its sandbox has no address of its ADD any more");
        Ok((!is_kept).then_some(lost))
    }

    /// Calls RELOAD of the attachment's plugins that are in `reloading`, the names of all plugins
    /// that support RELOAD. Calls nothing if there is no such plugin, if the sandbox is gone, or if
    /// the attachment's result is no longer cached.
    fn reload(
        &self,
        directories: &Directories,
        reloading: &BTreeSet<String>,
    ) -> anyhow::Result<Outcome> {
        let netns = self.entry.netns();
        if !may_exist(netns) {
            return Ok(self.gone());
        }
        let network = self.network.as_ref().map_err(|it| anyhow!("{it:#}"))?;
        let mut plugins = network.all_plugins().into_iter();
        if !plugins.any(|it| reloading.contains(&it.program)) {
            return Ok(Outcome::Nothing);
        }
        let is_named = !netns.as_os_str().is_empty();
        ensure!(is_named, "its entry in the cache names no namespace");
        // Reads the cached result again, because `cnitool limit` may have changed it meanwhile.
        let held = directories.cache.hold(&self.attachment, Hold::Shared)?;
        let Some(held) = held else {
            return Ok(Outcome::Gone);
        };
        let sandbox = held.entry.sandbox(&self.attachment);
        let chain = Chain::new(network, directories);
        chain.reload(&sandbox, &held.entry, reloading)?;
        Ok(Outcome::Reloaded)
    }
}

/// Returns the name of the host's end of the attachment's veth pair; `None` if there is none, or if
/// it disappears within [`END_OF_A_NAMESPACE`]. The kernel deletes a link some milliseconds after the
/// namespace of its other end.
fn lasting_link(attachment: &Attachment) -> Result<Option<String>, netlink::Error> {
    let host = Connection::open()?;
    let is_meant = |it: &Link| is_host_end(it, attachment);
    let Some(link) = host.links()?.into_iter().find(is_meant) else {
        return Ok(None);
    };
    let is_gone = host.is_gone_within(link.index, END_OF_A_NAMESPACE);
    Ok((!is_gone).then_some(link.name))
}

/// Returns the names of the attachments' plugins that support RELOAD. Also returns plugins that
/// cannot be run, so that RELOAD of their attachments fails and reports the error. Reports plugins
/// without RELOAD, which belong to other suites, on standard error.
fn reloading(path: &SearchPath, remembered: &[Remembered]) -> BTreeSet<String> {
    let networks = remembered.iter().filter_map(|it| it.network.as_ref().ok());
    let plugins = networks.flat_map(Conflist::all_plugins);
    let mut programs: BTreeSet<_> = plugins.map(|it| it.program).collect();
    let verbs = |program: &String| runtime::abilities(path, program).map(|it| it.verbs);
    programs.retain(|program| match verbs(program) {
        Ok(Some(verbs)) => verbs.iter().any(|verb| *verb == Verb::Reload.to_string()),
        Ok(None) => {
            note!("plugin {program} does not support RELOAD: its rules are not restored");
            false
        }
        Err(_) => true,
    });
    programs
}

/// Calls `work` for all items in parallel and returns the results in any order. Uses one thread for
/// each processor, at most [`MOST_THREADS`].
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

/// Maximum number of threads. All plugins wait for one lock of `nf_tables`, so more threads would
/// only use more memory.
const MOST_THREADS: usize = 8;

/// Maximum time to wait until the kernel has deleted the links of a namespace that ended. A link
/// that still exists afterwards shows that its sandbox exists.
const END_OF_A_NAMESPACE: Duration = Duration::from_secs(1);
