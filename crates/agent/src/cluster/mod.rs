//! Cluster: routes to the pods of the other nodes of a Kubernetes cluster, and the node's network
//! configuration.
//!
//! The API server lists the nodes. While it does not answer, everything stays as it is: [`saved`]
//! keeps the nodes over a restart of the agent, and the kernel keeps the routes after its end.

mod api;
mod cleanup;
mod config;
mod conflist;
mod counters;
mod desired;
mod encryption;
mod guard;
mod key;
mod object;
mod own_node;
mod probe;
mod proofs;
mod report;
mod saved;
mod watched;

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{Applied, Changes, Concerns, Kernel, Others, Peers, Problem, State};
use cni::note;
use futures::FutureExt as _;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use self::api::Watch;
pub(crate) use self::cleanup::clean_up;
pub(crate) use self::config::Config;
use self::config::Mode;
pub(crate) use self::counters::Counters;
use self::guard::Guarded;
use self::key::Keys;
pub(crate) use self::key::rotate;
use self::own_node::OwnNode;
use self::proofs::Proofs;
use self::report::Report;
use self::watched::Watched;
use crate::events::Events;
use crate::retry::Pauses;
use crate::shared::Shared;

/// Routes to the pods of other nodes until the agent ends.
///
/// # Errors
/// The configuration does not suit this host.
pub(crate) fn run(
    config: Config,
    shared: Shared,
    counters: Counters,
) -> impl Future<Output = anyhow::Result<()>> {
    // The HTTP server may answer before this part begins to run. Without a failure, an update of all
    // agents would go on to the next node.
    shared.health.set(API, Some(api::NOT_LISTED.to_owned()));
    begin(config, shared, counters)
}

async fn begin(config: Config, shared: Shared, counters: Counters) -> anyhow::Result<()> {
    let node = config.node_name()?;
    let networks = &shared.directories.networks;
    let conflist = config.conflist.as_ref().map(|it| networks.join(&it.file));
    for file in conflist.iter().chain([&config.state_file]) {
        if let Err(error) = saved::remove_unfinished(file) {
            note(format_args!("cluster: {error:#}"));
        }
    }
    let mut part = Part {
        api: Watch::start(config.access.clone()),
        own_node: OwnNode::new(node.clone(), config.access.clone()),
        announcement: OwnNode::new(node.clone(), config.access.clone()),
        watched: Watched::of(node.clone(), saved::read(&config.state_file, &node)),
        report: Report::new(shared.health.clone(), counters),
        concerns: Concerns::default(),
        deletions: None,
        proofs: Proofs::new(shared.health.clone()),
        conflicts: Pauses::with_short(REPAIRS),
        retry: Instant::now(),
        pause: RETRY,
        node,
        config,
        shared,
    };
    let mut pauses = Pauses::new();
    loop {
        let Err(error) = part.follow().await;
        part.report.failure(PART, Some(format!("{error:#}")));
        pauses.wait().await;
    }
}

/// The part `cluster`.
struct Part {
    config: Config,
    shared: Shared,
    /// Name of this node.
    node: String,
    api: Watch,
    /// Sets the condition of the own node.
    own_node: OwnNode,
    /// Announces the own node's key.
    announcement: OwnNode,
    watched: Watched,
    report: Report,
    concerns: Concerns,
    /// Receives deletions in the rules that guard the tunnels.
    deletions: Option<Events<()>>,
    /// Where packets of pods pass without a tunnel.
    proofs: Proofs,
    /// Pauses after events of other programs, which may go on.
    conflicts: Pauses,
    /// When to compare everything, or to try again what failed.
    retry: Instant,
    /// Pause before the next attempt.
    pause: Duration,
}

impl Part {
    /// Makes the routes at the start and after each change.
    ///
    /// # Errors
    /// A netlink socket failed.
    async fn follow(&mut self) -> anyhow::Result<Infallible> {
        // Listens before it reads the routes, so it misses no change.
        let mut changes = Changes::open().context("listen to events of routes")?;
        if self.deletions.is_none() {
            self.deletions = Some(guard::deletions().context("listen to nf_tables")?);
        }
        let mut kernel = Kernel::open().context("open a netlink socket")?;
        // What an earlier agent has proven.
        let used = kernel.direct_routes().await.context("read routes")?;
        self.proofs.proven.extend(used);
        loop {
            self.synchronize(&mut kernel).await?;
            self.report.failure(PART, None);
            self.until_changed(&mut changes).await?;
        }
    }

    async fn synchronize(&mut self, kernel: &mut Kernel) -> anyhow::Result<()> {
        let is_current = self.watched.is_current;
        let others = if is_current {
            Others::Remove
        } else {
            Others::Keep
        };
        // Pods without masquerading need no such networks.
        let exempt = self.set_pod_networks().await;
        self.report.error(MASQUERADE, exempt.as_ref().err());
        let announced = self.watched.key();
        let keys = encryption::keys(&self.config, &self.watched, &self.report).await;
        let (peers, way) = self.desired(keys.as_ref());
        let vxlan = self.config.vxlan.unwrap_or_default();
        let guarded = Guarded::of((&self.node, &self.watched.nodes), (&peers, &way), vxlan);
        let has_tunnels = guarded.is_some();
        if let Some(guarded) = guarded {
            let applied = spawn_blocking(move || guard::apply(&guarded, others)).await?;
            applied.context("guard the tunnels")?;
        }
        let applied = kernel.apply(&peers, &way, others);
        let applied = applied.await.context("set routes")?;
        self.proofs
            .set_routes(applied.direct.clone(), way.tunnels());
        if !has_tunnels && is_current {
            spawn_blocking(guard::remove).await??;
        }
        self.concerns.links.extend(&applied.links);
        self.concerns.tunnels.clone_from(&applied.tunnels);
        self.concerns.networks = peers.networks.into_keys().collect();
        let mut is_done = exempt.is_ok() && !applied.problems.iter().any(Problem::may_pass);
        if is_current {
            is_done &= self.keep_nodes().await;
            let usable = keys.as_ref().filter(|_| applied.mtu.is_some());
            encryption::announce(&mut self.announcement, usable, announced, &self.report);
            is_done &= self.offer_network(&applied, keys.as_ref()).await;
        }
        self.look_again(is_done);
        self.report_node(&applied);
        Ok(())
    }

    /// Plans the next synchronization without an event. What fails may fail for ever, so the pauses
    /// become longer.
    fn look_again(&mut self, is_done: bool) {
        let (pause, next) = if is_done {
            (self.config.mode.interval(), RETRY)
        } else {
            (self.pause, (2 * self.pause).min(LONGEST_RETRY))
        };
        self.retry = Instant::now() + pause;
        self.pause = next;
    }

    /// Lets pods of the cluster reach each other without masquerading.
    async fn set_pod_networks(&self) -> anyhow::Result<()> {
        let nodes = &self.watched.nodes;
        // Without a list, the networks that an earlier agent set are better than none.
        if nodes.is_empty() && !self.watched.is_current {
            return Ok(());
        }
        let peers: Vec<_> = match self.config.mode {
            Mode::Wireguard => Peers::encrypted(&self.node, nodes)
                .encrypted
                .into_iter()
                .collect(),
            _ => Peers::of(&self.node, nodes).networks.into_keys().collect(),
        };
        let own = nodes.get(&self.node).into_iter();
        let own = own.flat_map(|it| it.pod_cidrs.iter().copied());
        let networks = match &self.config.cluster_cidrs {
            None => peers.into_iter().chain(own).collect(),
            Some(configured) => configured.clone(),
        };
        let set = spawn_blocking(move || attach::set_cluster_networks(&networks)).await?;
        Ok(set?)
    }

    fn report_node(&mut self, applied: &Applied) {
        self.report.applied(self.watched.nodes.len(), applied);
        self.report.failure(NODE, self.node_failure());
    }

    /// Keeps the nodes for the next start of the agent. Returns whether that succeeded.
    async fn keep_nodes(&mut self) -> bool {
        let Some(nodes) = self.watched.unsaved() else {
            return true;
        };
        let state = State {
            node: self.node.clone(),
            has_other_routes: self.config.mode == Mode::None,
            is_encrypted: self.config.mode == Mode::Wireguard,
            nodes,
        };
        let file = self.config.state_file.clone();
        let written = spawn_blocking(move || saved::write(&file, &state)).await;
        let failure = written.map_err(Into::into).flatten().err();
        if failure.is_none() {
            self.watched.set_saved();
        }
        self.report.error(FILE, failure.as_ref());
        failure.is_none()
    }

    /// Lets pods start, once the node has networks for them and the tunnels exist. Returns whether
    /// there is nothing more to do.
    async fn offer_network(&mut self, applied: &Applied, keys: Option<&Keys>) -> bool {
        let mtu = applied.mtu;
        let own = self.watched.nodes.get(&self.node);
        let Some(own) = own.filter(|_| self.node_failure().is_none()) else {
            return true;
        };
        let failure = match self.config.mode {
            Mode::Vxlan | Mode::Auto => mtu.is_none().then(|| NO_DEVICES.to_owned()),
            Mode::Wireguard => encryption::failure(applied, keys, own.key),
            Mode::Direct | Mode::None => None,
        };
        if failure.is_some() {
            self.report.failure(CONFLIST, failure);
            return false;
        }
        let is_written = self.write_conflist(own, mtu).await;
        if is_written {
            self.say_network();
        }
        is_written
    }

    /// Writes this node's network configuration. Returns whether it is there, or not wanted.
    async fn write_conflist(&self, own: &cluster::Node, mtu: Option<u32>) -> bool {
        let Some(conflist) = self.config.conflist.clone() else {
            self.report.failure(CONFLIST, None);
            return true;
        };
        let has_ipv6 = mtu.is_none_or(|it| it >= LEAST_IPV6_MTU);
        let ranges = own.pod_cidrs.iter().filter(|it| it.is_ipv4() || has_ipv6);
        let ranges: Vec<_> = ranges.copied().collect();
        if ranges.is_empty() && !has_ipv6 {
            self.report.failure(CONFLIST, Some(NO_IPV6.to_owned()));
            return false;
        }
        let filled = conflist.filled(&ranges, mtu);
        let directory = self.shared.directories.networks.clone();
        let written = spawn_blocking(move || conflist::write(&directory, &conflist, &filled)).await;
        let failure = written.map_err(Into::into).flatten().err();
        self.report.error(CONFLIST, failure.as_ref());
        failure.is_none()
    }

    /// Says in the Node object that this node has a network for pods, unless another program makes
    /// the routes and so knows when they are there.
    fn say_network(&mut self) {
        if self.watched.says_network || self.config.mode == Mode::None {
            self.report.failure(CONDITION, None);
        } else {
            self.own_node.set_network_available();
        }
    }

    /// Reports whether the API server has accepted a change of the own node.
    fn report_change(&mut self, part: &'static str, outcome: &anyhow::Result<()>) {
        self.report.error(part, outcome.as_ref().err());
        if outcome.is_err() {
            self.retry = self.retry.min(Instant::now() + RETRY);
        }
    }

    /// Waits until the routes may differ from the desired ones.
    async fn until_changed(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        let is_conflict = loop {
            self.report.api(API, self.api.failure());
            tokio::select! {
                change = changes.next(&self.concerns) => {
                    change.context("the socket for events of routes ended")?;
                    break true;
                }
                deletion = guard::next(&mut self.deletions) => {
                    deletion?;
                    break true;
                }
                event = self.api.next() => {
                    if event.is_some_and(|it| self.watched.take(it)) {
                        break false;
                    }
                }
                outcome = self.own_node.outcome() => self.report_change(CONDITION, &outcome),
                outcome = self.announcement.outcome() => {
                    self.report_change(encryption::ANNOUNCEMENT, &outcome);
                }
                proven = self.proofs.changed() => {
                    proven?;
                    break false;
                }
                () = sleep_until(self.retry) => break false,
            }
        };
        self.settle(changes, is_conflict).await
    }

    /// Waits for the events that come together with the first one, because one synchronization is enough
    /// for them. A repair causes events, too.
    async fn settle(&mut self, changes: &mut Changes, is_conflict: bool) -> anyhow::Result<()> {
        if is_conflict {
            self.conflicts.wait().await;
        } else {
            sleep(SETTLE).await;
        }
        while let Some(event) = self.api.next().now_or_never() {
            event.map(|it| self.watched.take(it));
        }
        while let Some(change) = changes.next(&self.concerns).now_or_never() {
            change.context("the socket for events of routes ended")?;
        }
        // A set of networks is replaced whole, which deletes each of its elements.
        while let Some(deletion) = guard::next(&mut self.deletions).now_or_never() {
            deletion?;
        }
        Ok(())
    }
}

/// Names under which the agent's health shows failures.
const PART: &str = "cluster";
const API: &str = "cluster: API server";
const NODE: &str = "cluster: node";
const FILE: &str = "cluster: state file";
const CONFLIST: &str = "cluster: conflist";
const MASQUERADE: &str = "cluster: networks without masquerading";
const CONDITION: &str = "cluster: condition";

/// The least MTU of a link with IPv6 (`IPV6_MIN_MTU`).
const LEAST_IPV6_MTU: u32 = 1280;
const NO_IPV6: &str = "pods have no IPv6, because their MTU is below 1280, and no IPv4 range";
const NO_DEVICES: &str = "waits for the VXLAN devices; the log says why they are missing";

/// The number of events of other programs, at most five seconds apart, after which the pauses become
/// longer.
const REPAIRS: usize = 30;

/// Time from the first event until routes are set again.
const SETTLE: Duration = Duration::from_millis(50);

/// The first and the longest pause after which failed changes are tried again.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_mins(1);
