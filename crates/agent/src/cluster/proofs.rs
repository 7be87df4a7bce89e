//! The direct routes on which packets of pods pass, in the mode `auto`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::time::Duration;

use cluster::{DirectRoute, Tunnel};
use cni::note;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::probe;

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
}

/// Routes that were tried, and those of them on which packets passed.
#[derive(Default)]
struct Chunk {
    tried: BTreeSet<DirectRoute>,
    passing: BTreeSet<DirectRoute>,
}

impl Proofs {
    pub fn new() -> Self {
        Self {
            proven: BTreeSet::new(),
            routes: BTreeSet::new(),
            tunnels: Vec::new(),
            waiting: VecDeque::new(),
            running: JoinSet::new(),
            next_round: Instant::now(),
            next_chunk: Instant::now(),
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
                let Chunk { tried, passing } = chunk?;
                let before = self.proven.clone();
                self.proven.retain(|it| !tried.contains(it));
                let passing = passing.into_iter();
                self.proven
                    .extend(passing.filter(|it| self.routes.contains(it)));
                if before != self.proven {
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

    /// Starts to try the next routes, those of each family and link in a thread of their own.
    fn start(&mut self) {
        let next = self.waiting.drain(..AT_ONCE.min(self.waiting.len()));
        let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
        for route in next {
            let key = (route.gateway.is_ipv4(), route.link);
            groups.entry(key).or_default().insert(route);
        }
        for ((is_ipv4, link), tried) in groups {
            let mut tunnels = self.tunnels.iter();
            let tunnel = tunnels.find(|it| it.local.is_ipv4() == is_ipv4).cloned();
            let Some(tunnel) = tunnel else {
                continue;
            };
            self.running.spawn_blocking(move || {
                let passing = probe::passing(&tried, &tunnel, link);
                let chunk = passing.map(|passing| Chunk { tried, passing });
                chunk.unwrap_or_else(|error| {
                    note(format_args!("cluster: cannot try direct routes: {error}"));
                    Chunk::default()
                })
            });
        }
    }
}

/// Time from the beginning of a round to that of the next one, and of a chunk to that of the next.
const INTERVAL: Duration = Duration::from_secs(10);
const PACE: Duration = Duration::from_secs(3);

/// Most routes of a chunk.
const AT_ONCE: usize = 256;

/// Most routes of a family and link that are tried. The kernel forgets neighbours from 512 on
/// (`gc_thresh2`), and would ask for each one again by a broadcast.
const MOST: usize = 256;
