//! One round: reads the node, asks the runtimes, and removes what is proven stale.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use cni::NetworkName;
use node::Node;
use runtime::{Chain, Conflist, Directories};
use tokio::task::spawn_blocking;
use upkeep::{
    Leftover, Removal, Renamed, UnknownPort, UnprovenReason, read_node, remove, remove_leftover,
};

use super::clock::Clock;
use super::config::{Config, RuntimeSocket};
use super::counters::Counters;
use super::sandboxes::Runtimes;
use super::verdict::{Reason, Seen, Verdict};
use super::waits::Waits;

/// What rounds remember.
pub(super) struct Memory {
    /// Whether the wall clock is steady.
    clock: Clock,
    /// How long attachments with links have looked unused.
    waits: Waits,
    /// Sockets of runtimes that existed at some time.
    sockets: BTreeSet<PathBuf>,
}

impl Memory {
    /// Returns the memory before the first round.
    pub fn start() -> Self {
        Self {
            clock: Clock::start(),
            waits: Waits::default(),
            sockets: BTreeSet::new(),
        }
    }
}

/// The outcome of a round: failures, reasons why attachments stay, and messages for the operator.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Errors of DELs, one for each attachment that could not be removed.
    pub failures: Vec<String>,
    /// Stale attachments that the round did not try to remove, because an earlier DEL of their
    /// network took too long.
    pub untried: usize,
    /// Reasons why attachments are not proven gone: links that belong or may belong to them. A
    /// running ADD causes such a reason for a moment, so only a reason in two successive rounds
    /// counts as a failure.
    pub obstacles: BTreeSet<String>,
    /// Ports of bridges that belong to no attachment. A running ADD may cause one for a moment, so
    /// only a port in two successive rounds becomes a note.
    pub strangers: BTreeSet<String>,
    /// Messages for the operator. The agent writes a message to standard error only if the report
    /// of the round before did not have it.
    pub notes: BTreeSet<String>,
}

/// Reads the node, then asks the runtimes for their sandboxes. Returns both, whether the wall clock
/// is steady, and which attachments with links have looked unused long enough.
///
/// # Errors
/// The node cannot be read, or a runtime does not answer. Then the round must remove nothing.
pub(super) async fn look(
    sockets: &RuntimeSocket,
    directories: &Directories,
    memory: &mut Memory,
) -> anyhow::Result<Seen> {
    let runtimes = Runtimes::connect(sockets, &mut memory.sockets).await;
    let runtimes = runtimes.context(NOTHING)?;
    let sockets = runtimes.sockets();
    let read = (directories.clone(), sockets.clone());
    let node = spawn_blocking(move || read_all(&read.0, &read.1));
    let (node, mut leftovers) = node.await.context("read the node")??;
    let listed = runtimes.sandboxes().await.context(NOTHING)?;
    leftovers.retain(|it| !listed.contains(it.attachment.container.as_str()));
    let due = memory.waits.pass(&leftovers, Instant::now());
    Ok(Seen {
        node,
        listed,
        unsteady: memory.clock.unsteady_for(),
        leftovers,
        due,
        sockets,
    })
}

/// Reads the attachments of the node, and those that look unused although they have links. Reads
/// processes only if there are such attachments. Without a runtime that could list it, no
/// attachment looks unused.
fn read_all(
    directories: &Directories,
    sockets: &[PathBuf],
) -> anyhow::Result<(Node, Vec<Leftover>)> {
    let mut node = read_node(directories)?;
    if sockets.is_empty() || Leftover::all(&node).is_empty() {
        return Ok((node, Vec::new()));
    }
    node.read_processes(sockets);
    let leftovers = Leftover::all(&node);
    Ok((node, leftovers))
}

/// First words of the error if the runtimes cannot be asked for their sandboxes.
const NOTHING: &str = "nothing was removed";

/// Number of obstacles that `/healthz` names.
const NAMED: usize = 3;

/// What a renamed host end of a veth pair means.
const RENAMED: &str = "rules that go by its name protect it only after `cnitool reload`";

impl Report {
    /// Returns failed DELs, and obstacles that the previous report `before` has, too; `None` if
    /// there are none.
    pub fn failure(&self, before: &Self) -> Option<String> {
        let remaining = self.failures.first().map(|first| {
            let count = self.failures.len() + self.untried;
            format!("{count} of the stale attachments remain: {first}")
        });
        let mut lasting = self.obstacles.intersection(&before.obstacles).cloned();
        let named: Vec<_> = lasting.by_ref().take(NAMED).collect();
        let more = match lasting.count() {
            0 => None,
            more => Some(format!("and {more} more reasons why attachments stay")),
        };
        let reasons: Vec<_> = remaining.into_iter().chain(named).chain(more).collect();
        // A plugin may print several lines, but the log and `/healthz` show a failure in one line.
        (!reasons.is_empty()).then(|| reasons.join("; ").replace('\n', "; "))
    }

    /// Adds a note for each unknown port that `before`, the report of the round before, has, too.
    pub fn note_strangers(&mut self, before: &Self) {
        let lasting = self.strangers.intersection(&before.strangers);
        self.notes.extend(lasting.cloned());
    }

    /// Adds `reason`, why attachments of `network` are not proven gone, to the report. A link that
    /// belongs or may belong to them becomes an obstacle. Any other reason becomes a note.
    fn add_unproven(&mut self, network: &NetworkName, reason: &Reason) {
        let stay = format!("network {network}: attachments that no runtime lists stay: ");
        match reason {
            Reason::Unproven(reason @ UnprovenReason::Behind(link)) => self.obstacles.insert(format!(
                "{stay}{reason}; if {link} is no container's, delete it or take it off the bridge"
            )),
            Reason::Unproven(reason) => self.notes.insert(format!("{stay}{reason}")),
            Reason::Leftover(it) => {
                let attachment = &it.attachment;
                let advice = "with cniVersion 1.1.0, CRI-O removes such remains at its start";
                self.obstacles
                    .insert(format!("{attachment} stays: {reason}; {advice}"))
            }
            _ => false,
        };
    }
}

/// Removes stale attachments. Contains what a round needs in addition to the state that it read.
#[derive(Debug, Clone)]
pub(super) struct Collector {
    /// The section `gc` of the configuration file.
    pub config: Config,
    /// The directories of the container runtime.
    pub directories: Directories,
    /// Metrics of garbage collection.
    pub counters: Counters,
}

impl Collector {
    /// Removes the stale attachments of all networks, and continues after a failure. With the key
    /// `dryRun`, only reports them.
    pub fn collect(&self, seen: &Seen) -> Report {
        let renamed = Renamed::all(&seen.node).into_iter();
        let renamed = renamed.map(|it| format!("{it}: {RENAMED}"));
        let strangers = UnknownPort::all(&seen.node);
        let mut report = Report {
            notes: seen.left_out().into_iter().chain(renamed).collect(),
            strangers: strangers.iter().map(ToString::to_string).collect(),
            ..Report::default()
        };
        // Judges all attachments before the first DEL. A DEL may take minutes, and the leases of
        // running ADDs would grow old in this time.
        let networks = seen.networks().into_iter();
        let judged: Vec<_> = networks.map(|it| (it, seen.verdicts(it))).collect();
        let mut unproven = Vec::new();
        for (network, verdicts) in &judged {
            let reasons: Vec<_> = verdicts.iter().filter_map(Verdict::unproven).collect();
            unproven.push((&network.name, reasons.len()));
            for reason in reasons {
                report.add_unproven(&network.name, reason);
            }
            self.remove_stale(network, (seen, verdicts), &mut report);
        }
        self.counters.set_unproven(unproven.into_iter());
        self.counters.round_ended(report.failures.is_empty());
        report
    }

    /// Removes the stale attachments of a network. A plugin that hangs once probably hangs for all
    /// attachments, so the first DEL that takes too long is the network's last one in the round.
    fn remove_stale(
        &self,
        network: &Conflist,
        (seen, verdicts): (&Seen, &[Verdict<'_>]),
        report: &mut Report,
    ) {
        let mut stale = verdicts.iter().filter(|it| it.kept.is_none());
        for verdict in stale.by_ref() {
            let start = Instant::now();
            self.remove(network, (seen, verdict), report);
            if start.elapsed() >= self.config.del_timeout {
                break;
            }
        }
        report.untried += stale.count();
    }

    fn remove(
        &self,
        network: &Conflist,
        (seen, stale): (&Seen, &Verdict<'_>),
        report: &mut Report,
    ) {
        if self.config.dry_run {
            let attachment = &stale.candidate.attachment;
            report.notes.insert(format!("dryRun: no DEL {attachment}"));
            return;
        }
        let chain = Chain::new(network, &self.directories).within(self.config.del_timeout);
        let removed = match seen.leftover(&stale.candidate) {
            Some(leftover) => remove_leftover(&chain, &stale.candidate, (leftover, &seen.sockets)),
            None => remove(&chain, &stale.candidate),
        };
        match removed {
            Ok(Removal::Removed) => self.counters.removed(&network.name),
            Ok(Removal::Kept) => {}
            Err(error) => {
                self.counters.failed(&network.name);
                report.failures.push(format!("{error:#}"));
            }
        }
    }
}
