//! Repair: calls RELOAD if another program deletes something in the suite's tables of `nf_tables`.
//! RELOAD is a verb of this suite that restores what ADD added there.
//!
//! The kernel reports each deletion. The agent collects reports for [`SETTLE`]. Then it checks
//! whether existing attachments lack something ([`Deletions::judge`]). A DEL also deletes elements,
//! but it ends the attachment, so it causes no RELOAD. At most one RELOAD runs at a time.

mod counters;
mod guard;
mod listener;
mod paused;
mod unrepaired;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cni::note;
use futures::future::OptionFuture;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use upkeep::{Deletions, ElementCache, MissingElements, MissingObjects, Reloads};

use self::listener::Listener;
use self::unrepaired::Unrepaired;
use crate::defaults::yes;
use crate::health::watched;
use crate::retry::Pauses;
use crate::shared::Shared;

pub(crate) use self::counters::Counters;
pub(crate) use self::guard::Guard;

/// The section `repair` of the agent's configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// Whether the part `repair` runs.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// No repair begins while this file exists.
    pub unless: Option<PathBuf>,
    /// Also calls RELOAD after each reload and each start of firewalld.
    #[serde(default)]
    pub firewalld: bool,
    /// Guards 127.0.0.0/8 in the place of portmap's `IPsec` policies.
    #[serde(default = "yes")]
    pub localhost_guard: bool,
}

/// Restores what other programs delete from the suite's tables, until the agent ends. After a
/// failure of the netlink socket, opens a new one.
pub(crate) async fn run(config: Config, shared: Shared, counters: Counters) -> anyhow::Result<()> {
    let firewalld = Arc::new(Notify::new());
    if config.firewalld {
        follow_firewalld(&shared, Arc::clone(&firewalld));
    }
    let mut part = Part {
        config,
        shared,
        counters,
        firewalld,
        element_cache: ElementCache::default(),
        earliest: Instant::now(),
        unrepaired: Unrepaired::default(),
        retry: None,
    };
    let mut pauses = Pauses::new();
    loop {
        let Err(error) = part.serve().await;
        part.shared.health.set(PART, Some(format!("{error:#}")));
        pauses.wait().await;
    }
}

struct Part {
    config: Config,
    shared: Shared,
    counters: Counters,
    /// Notified after each reload and start of firewalld, and each connection to the system bus.
    firewalld: Arc<Notify>,
    /// Elements that were seen in the suite's tables, each with its attachment.
    element_cache: ElementCache,
    earliest: Instant,
    /// Attachments that RELOAD could not restore, each with the reason.
    unrepaired: Unrepaired,
    /// The next attempt to restore attachments; `None` if none is planned.
    retry: Option<Retry>,
}

/// A planned RELOAD, because an earlier one did not restore everything.
struct Retry {
    at: Instant,
    /// The pause before this RELOAD. A further RELOAD follows after twice this pause, up to
    /// [`LAST_RETRY`].
    pause: Duration,
    missing: MissingObjects,
}

impl Part {
    /// Receives the kernel's reports and repairs until the netlink socket fails.
    async fn serve(&mut self) -> anyhow::Result<Infallible> {
        let listener = Listener::open(self.element_cache.clone())?;
        self.shared.health.set(PART, None);
        // The kernel did not report earlier deletions to this socket, so anything may be missing.
        let mut missing = Some(MissingObjects::of_anything());
        loop {
            if let Some(missing) = missing.take() {
                self.repair(missing, &listener).await?;
            }
            missing = self.next_missing(&listener).await?;
        }
    }

    /// Waits for a reported deletion, a start or reload of firewalld, or the time of `retry`.
    /// Returns what RELOAD must restore; `None` if existing attachments lack nothing.
    async fn next_missing(&self, listener: &Listener) -> anyhow::Result<Option<MissingObjects>> {
        let retry = self.retry.as_ref();
        let again = retry.map(|it| it.missing.clone());
        let retry = OptionFuture::from(retry.map(|it| sleep_until(it.at)));
        tokio::select! {
            () = listener.suspicious() => {
                sleep(SETTLE).await;
                self.judged(listener).await
            }
            () = self.firewalld.notified() => Ok(Some(MissingObjects::of_anything())),
            Some(()) = retry => Ok(again),
        }
    }

    /// Repairs `missing`: waits until a RELOAD may begin, calls it, and checks whether the elements
    /// are back.
    async fn repair(&mut self, missing: MissingObjects, listener: &Listener) -> anyhow::Result<()> {
        sleep_until(self.earliest).await;
        // Also repairs what was lost during this wait.
        let more = self.judged(listener).await?;
        let missing = self.wait_while_paused(missing.and(more)).await;
        report(&missing);
        let start = Instant::now();
        let reloads = self.reload(&missing).await;
        self.earliest = start + SHORTEST_PERIOD.max(2 * start.elapsed());
        let outcome = match reloads {
            Ok(reloads) => {
                let lacking = self.lacking(&missing, &reloads, listener).await;
                lacking.map(|lacking| (reloads, lacking))
            }
            Err(error) => Err(error),
        };
        self.count(missing, outcome);
        Ok(())
    }

    /// Calls RELOAD for the attachments that `missing` concerns. Fails if the runtime's cache
    /// cannot be read.
    async fn reload(&self, missing: &MissingObjects) -> anyhow::Result<Reloads> {
        let (directories, concerned) = (self.shared.directories.clone(), missing.clone());
        // RELOAD cannot fully restore an attachment whose container deleted the interface or
        // addresses, so a repeated RELOAD leaves it out. But RELOAD can still restore the
        // attachment's elements on the host. So if tables lack something, no attachment is left
        // out.
        let left_out = if missing.is_of_tables() {
            BTreeSet::new()
        } else {
            self.unrepaired.left_out()
        };
        let work = spawn_blocking(move || {
            upkeep::reload_each(&directories, &left_out, |it| {
                concerned.concerns(&it.owner())
            })
        });
        let late = || {
            let reason = format!("RELOAD has been running for {LATE:?}; a plugin may hang");
            self.shared.health.set(PART, Some(reason));
        };
        watched(work, LATE, late).await?
    }

    /// Returns the attachments of `missing` that still lack elements after RELOAD, with the tables.
    /// If elements are missing, looks again after [`CONFIRM`], because a running DEL deletes
    /// elements, too. Fails if the kernel refuses a request.
    async fn lacking(
        &self,
        missing: &MissingObjects,
        reloads: &Reloads,
        listener: &Listener,
    ) -> anyhow::Result<MissingElements> {
        let reloaded = reloads.reloaded();
        let look = || {
            let (element_cache, reloaded) = (self.element_cache.clone(), reloaded.clone());
            spawn_blocking(move || element_cache.lacking(&reloaded))
        };
        if look().await?.is_ok_and(|it| it.is_empty()) {
            return Ok(MissingElements::default());
        }
        sleep(CONFIRM).await;
        let mut lacking = look().await??;
        // Deletions that were reported meanwhile are judged next. So an attachment that this RELOAD
        // restored does not count here: it may have lost its elements again.
        let follows = |it: &String| listener.is_suspicious() && reloaded.contains(it);
        lacking.retain(|it, _| missing.concerns(it) && !follows(it));
        Ok(lacking)
    }

    /// Takes the reported deletions from `listener` and compares them with the current state of
    /// `nf_tables`. Returns what is lost; `None` if existing attachments lack nothing. If only
    /// elements of known attachments are missing, compares again after [`CONFIRM`], because a DEL
    /// may be in progress. Fails if the socket has failed.
    async fn judged(&self, listener: &Listener) -> anyhow::Result<Option<MissingObjects>> {
        let deletions = Arc::new(listener.take()?);
        let first = self.judge(Arc::clone(&deletions)).await?;
        if !first.as_ref().is_some_and(MissingObjects::may_be_transient) {
            return Ok(first);
        }
        sleep(CONFIRM).await;
        self.judge(deletions).await
    }

    async fn judge(&self, deletions: Arc<Deletions>) -> anyhow::Result<Option<MissingObjects>> {
        let element_cache = self.element_cache.clone();
        let judged = spawn_blocking(move || deletions.judge(&element_cache)).await?;
        Ok(judged.unwrap_or_else(|error| {
            self.shared.health.set(PART, Some(format!("{error:#}")));
            // The state of `nf_tables` cannot be read, so anything may be lost.
            Some(MissingObjects::of_anything())
        }))
    }

    /// Waits while the file of the key `unless` exists. If there is no such file, returns `missing`
    /// at once. After a wait, anything counts as missing, because more may have been deleted.
    async fn wait_while_paused(&self, missing: MissingObjects) -> MissingObjects {
        let Some(file) = self.config.unless.as_deref().filter(|it| it.exists()) else {
            return missing;
        };
        note!(
            "repair: {} lost something; nothing is repaired until {} is removed",
            names(&missing),
            file.display()
        );
        self.counters.declined.inc();
        paused::until_removed(file).await;
        missing.and(Some(MissingObjects::of_anything()))
    }

    fn count(
        &mut self,
        missing: MissingObjects,
        outcome: anyhow::Result<(Reloads, MissingElements)>,
    ) {
        let (failure, is_new) = match outcome {
            Ok((reloads, lacking)) => {
                // A repeated RELOAD may leave out all attachments. Then no plugin was called, so
                // there is nothing to log and to count.
                if missing.is_of_tables() || reloads.has_called() {
                    note(reloads.summary());
                    self.counters.reloads.inc();
                }
                let is_new = self.unrepaired.update(&missing, (&reloads, &lacking));
                (self.unrepaired.failure(), is_new)
            }
            Err(error) => (Some(format!("RELOAD: {error:#}")), false),
        };
        let is_known = self.unrepaired.failure() == failure;
        if is_known && !self.unrepaired.has_fault_in(&missing) {
            self.counters.repaired(&missing);
        } else {
            self.counters.failures.inc();
        }
        self.counters.set_unrepaired(&self.unrepaired);
        let failed = (!is_known).then_some(missing);
        let again = self.unrepaired.missing().map(|it| it.and(failed.clone()));
        self.retry = again.or(failed).map(|it| self.next_retry(it, is_new));
        self.shared.health.set(PART, failure);
    }

    fn next_retry(&self, missing: MissingObjects, is_new: bool) -> Retry {
        let now = Instant::now();
        match self.retry.as_ref().filter(|_| !is_new) {
            // This repair began before the planned time, so it had another cause. The plan stays.
            Some(next) if next.at > now => Retry {
                missing,
                at: next.at,
                pause: next.pause,
            },
            last => {
                let pause = last.map_or(FIRST_RETRY, |it| (2 * it.pause).min(LAST_RETRY));
                Retry {
                    missing,
                    at: now + pause,
                    pause,
                }
            }
        }
    }
}

/// Reports on standard error which tables lost something.
fn report(missing: &MissingObjects) {
    if !missing.tables.is_empty() {
        note!(
            "repair: {} lost something that existing attachments need: calling RELOAD",
            names(missing)
        );
    }
}

/// Notifies `reloaded` after each reload and each start of firewalld, and after each connection to
/// the system bus. The D-Bus library blocks, so a thread of its own waits for these events.
fn follow_firewalld(shared: &Shared, reloaded: Arc<Notify>) {
    let health = shared.health.clone();
    thread::spawn(move || {
        let Err(error) = upkeep::watch_firewalld(|| reloaded.notify_one());
        health.set("firewalld", Some(format!("{error:#}")));
    });
}

fn names(missing: &MissingObjects) -> String {
    let names: Vec<_> = missing.tables.iter().copied().collect();
    match names.as_slice() {
        [] => "tables of nf_tables may have".to_owned(),
        [only] => format!("nf_tables table {only}"),
        names => format!("nf_tables tables {}", names.join(", ")),
    }
}

const PART: &str = "repair";

/// Time from the first reported deletion to its comparison with the state of `nf_tables`. In this
/// time, the rollback of a failed ADD removes everything else that the ADD made. Then no attachment
/// needs the deleted elements, so they are not missing. All DELs of this time need only one
/// comparison.
const SETTLE: Duration = Duration::from_millis(100);

/// Pause before a second look at missing elements, because a DEL may be in progress.
const CONFIRM: Duration = Duration::from_millis(250);

/// Minimum time from the start of a RELOAD to the start of the next one. The pause after a RELOAD
/// is also at least as long as the RELOAD, so RELOADs take at most half of the time.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// Pause before a failed RELOAD is repeated for the first time. Each further pause is twice as
/// long, up to [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_mins(5);

/// The time after which a RELOAD is reported as slow.
const LATE: Duration = Duration::from_mins(1);
