//! The direct routes on which packets of pods pass, in the mode `auto`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::time::Duration;

use cluster::{DirectRoute, Tunnel};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::probe;
use crate::health::Health;

/// Which direct routes packets of pods pass. Tries all again and again, in chunks, in the background.
pub(super) struct Proofs {
    /// The routes on which packets passed when they were tried last.
    pub proven: BTreeSet<DirectRoute>,
    /// All routes to try.
    routes: BTreeSet<DirectRoute>,
    tunnels: Vec<Tunnel>,
    /// Routes that this round has not tried yet.
    waiting: VecDeque<DirectRoute>,
    running: JoinSet<Chunk>,
    /// When the next round, and the next chunk, may begin.
    next_round: Instant,
    next_chunk: Instant,
    /// Why routes of a family and link cannot be tried.
    failures: BTreeMap<Group, String>,
    health: Health,
}

/// A family, whether it is IPv4, and the index of a link.
type Group = (bool, u32);

/// Routes of a group that were tried.
struct Chunk {
    group: Group,
    tried: BTreeSet<DirectRoute>,
    /// Those of them on which packets passed.
    passing: nix::Result<BTreeSet<DirectRoute>>,
}

impl Proofs {
    pub fn new(health: Health) -> Self {
        Self {
            proven: BTreeSet::new(),
            routes: BTreeSet::new(),
            tunnels: Vec::new(),
            waiting: VecDeque::new(),
            running: JoinSet::new(),
            next_round: Instant::now(),
            next_chunk: Instant::now(),
            failures: BTreeMap::new(),
            health,
        }
    }

    /// Replaces the routes to try: at most [`MOST`] of each family and link. New ones come first. A proof
    /// ends with its route.
    pub fn set_routes(&mut self, mut routes: BTreeSet<DirectRoute>, tunnels: &[Tunnel]) {
        let mut counts = BTreeMap::new();
        routes.retain(|it| {
            let count = counts.entry((it.gateway.is_ipv4(), it.link)).or_insert(0);
            *count += 1;
            *count <= MOST
        });
        for new in routes.difference(&self.routes) {
            self.waiting.push_front(*new);
        }
        self.waiting.retain(|it| routes.contains(it));
        self.proven.retain(|it| routes.contains(it));
        self.failures.retain(|it, _| counts.contains_key(it));
        self.report();
        self.tunnels = tunnels.to_vec();
        self.routes = routes;
    }

    /// Tries routes until the proven ones change. May be dropped while it waits.
    ///
    /// # Errors
    /// A thread panicked.
    pub async fn changed(&mut self) -> Result<(), JoinError> {
        loop {
            while let Some(chunk) = self.running.join_next().await {
                if self.take(chunk?) {
                    return Ok(());
                }
            }
            if self.routes.is_empty() {
                return pending().await;
            }
            sleep_until(self.next_chunk).await;
            if self.waiting.is_empty() {
                sleep_until(self.next_round).await;
                self.next_round = Instant::now() + INTERVAL;
                self.waiting.extend(&self.routes);
            }
            self.next_chunk = Instant::now() + PACE;
            self.start();
        }
    }

    /// Notes what a chunk found. Returns whether the proven routes have changed.
    fn take(&mut self, chunk: Chunk) -> bool {
        let failure = chunk.passing.as_ref().err();
        let failure = failure.map(|it| format!("cannot try them: {}", it.desc()));
        self.failures.remove(&chunk.group);
        self.failures.extend(failure.map(|it| (chunk.group, it)));
        self.report();
        let Ok(passing) = chunk.passing else {
            return false;
        };
        let before = self.proven.clone();
        self.proven.retain(|it| !chunk.tried.contains(it));
        let passing = passing.into_iter();
        self.proven
            .extend(passing.filter(|it| self.routes.contains(it)));
        before != self.proven
    }

    fn report(&self) {
        let failure = self.failures.values().next();
        self.health.set(PART, failure.cloned());
    }

    /// Starts to try the next routes, those of each family and link in a thread of their own.
    fn start(&mut self) {
        let next = self.waiting.drain(..AT_ONCE.min(self.waiting.len()));
        let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
        for route in next {
            let key = (route.gateway.is_ipv4(), route.link);
            groups.entry(key).or_default().insert(route);
        }
        for (group, tried) in groups {
            let (is_ipv4, link) = group;
            let mut tunnels = self.tunnels.iter();
            let tunnel = tunnels.find(|it| it.local.is_ipv4() == is_ipv4).cloned();
            let Some(tunnel) = tunnel else {
                continue;
            };
            self.running.spawn_blocking(move || {
                let passing = probe::passing(&tried, &tunnel, link);
                Chunk {
                    group,
                    tried,
                    passing,
                }
            });
        }
    }
}

/// Name under which the agent's health shows failures.
const PART: &str = "cluster: direct routes";

/// Time from the beginning of a round to that of the next one, and of a chunk to that of the next.
const INTERVAL: Duration = Duration::from_secs(10);
const PACE: Duration = Duration::from_secs(3);

/// Most routes of a chunk.
const AT_ONCE: usize = 256;

/// Most routes of a family and link that are tried. The kernel forgets neighbours from 512 on
/// (`gc_thresh2`), and would ask for each one again by a broadcast.
const MOST: usize = 256;
