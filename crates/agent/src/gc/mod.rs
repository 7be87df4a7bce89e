//! Garbage collection in rounds: each round removes what dead sandboxes left on the node.
//!
//! The crate `upkeep` proves from the state of the node which attachments are gone. This module
//! also asks the container runtimes: a round removes no attachment whose sandbox a runtime lists.
//! If a runtime does not answer, a round removes nothing.

mod clock;
mod config;
mod counters;
mod pause;
mod round;
mod sandboxes;
mod verdict;
mod waits;

use std::time::Duration;

use anyhow::Context as _;
use cni::note;
use runtime::Directories;
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

use crate::health::watched;
use crate::shared::Shared;

use self::pause::Pause;
use self::round::{Collector, Memory, Report, look};

pub(crate) use self::config::Config;
pub(crate) use self::counters::Counters;

/// Runs rounds of garbage collection: after the start, after each interval, and on SIGHUP (`hangups`).
/// After a failed round, for example because a runtime did not answer, the next round begins after a
/// retry pause, or when the socket of a runtime appears.
pub(crate) async fn run(
    config: Config,
    shared: Shared,
    counters: Counters,
    mut hangups: Signal,
) -> anyhow::Result<()> {
    let mut pause = Pause::before_first(config.interval);
    let sockets = config.runtime_socket.paths();
    let collector = Collector {
        config,
        directories: shared.directories,
        counters,
    };
    let health = &shared.health;
    let mut memory = Memory::start();
    let mut last = Report::default();
    loop {
        pause.wait(&mut hangups, &sockets).await;
        let round = watched(round(&collector, &mut memory), SLOW, || {
            let reason = format!("a round has been running for {SLOW:?}: a DEL or a file may hang");
            health.set(PART, Some(reason));
        });
        match round.await {
            Ok((mut report, unsteady)) => {
                pause.succeeded(unsteady);
                report.note_strangers(&last);
                for line in report.notes.difference(&last.notes) {
                    note!("gc: {line}");
                }
                health.set(PART, report.failure(&last));
                last = report;
            }
            Err(error) => {
                pause.failed();
                collector.counters.failed_rounds.inc();
                health.set(PART, Some(format!("{error:#}")));
            }
        }
    }
}

/// Returns what a round would do, one line for each attachment, and changes nothing.
///
/// # Errors
/// The node cannot be read, or a runtime does not answer.
pub(crate) async fn dry_run(config: Config, directories: Directories) -> anyhow::Result<String> {
    let sockets = &config.runtime_socket;
    let seen = look(sockets, &directories, &mut Memory::start()).await?;
    let networks = seen.networks().into_iter();
    let verdicts = networks.flat_map(|it| seen.verdicts(it));
    let lines = verdicts.map(|it| it.to_string());
    let lines = lines.chain(seen.left_out()).map(|it| it + "\n");
    Ok(lines.collect())
}

/// Runs a round. Returns its report, and how long the wall clock has to stay steady before rounds
/// remove anything; `None` if it is steady already.
async fn round(
    collector: &Collector,
    memory: &mut Memory,
) -> anyhow::Result<(Report, Option<Duration>)> {
    let sockets = &collector.config.runtime_socket;
    let seen = look(sockets, &collector.directories, memory).await?;
    let (collector, unsteady) = (collector.clone(), seen.unsteady);
    let report = spawn_blocking(move || collector.collect(&seen));
    Ok((report.await.context("remove attachments")?, unsteady))
}

const PART: &str = "gc";

/// Time after which `/healthz` shows a running round as a failure: many DELs may run into their
/// time limits, or a file system may not answer. The kubelet has the same time limit for a DEL.
const SLOW: Duration = Duration::from_mins(2);
