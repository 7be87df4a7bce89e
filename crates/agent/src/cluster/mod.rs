//! Cluster: routes to the pods of the other nodes of a Kubernetes cluster, and the node's network
//! configuration.
//!
//! The API server tells which nodes there are. While it does not answer, everything stays as it
//! is: [`saved`] keeps the nodes over a restart of the agent, and the kernel keeps the routes over
//! its end.

mod api;
mod config;
mod conflist;
mod counters;
mod guard;
mod object;
mod report;
mod saved;
mod watched;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{Applied, Changes, Kernel, Others, Peers, Tunnel, Way};
use futures::FutureExt as _;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use self::api::Watch;
pub(crate) use self::config::Config;
use self::config::Mode;
pub(crate) use self::counters::Counters;
use self::report::Report;
use self::watched::Watched;
use crate::events::Events;
use crate::retry::Pauses;
use crate::shared::Shared;

/// Routes to the pods of other nodes until the agent ends.
///
/// # Errors
/// The configuration does not suit this host.
pub(crate) async fn run(config: Config, shared: Shared, counters: Counters) -> anyhow::Result<()> {
    let node = config.node_name()?;
    let mut part = Part {
        api: Watch::start(config.access.clone()),
        watched: Watched::of(node.clone(), saved::read(&config.state_file)),
        report: Report::new(shared.health.clone(), counters),
        links: BTreeSet::new(),
        retry: None,
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
    watched: Watched,
    report: Report,
    /// Indexes of the links that routes use or used.
    links: BTreeSet<u32>,
    /// When to try again what failed.
    retry: Option<Instant>,
}

impl Part {
    /// Makes the routes at the start and after each change.
    ///
    /// # Errors
    /// A netlink socket failed.
    async fn follow(&mut self) -> anyhow::Result<Infallible> {
        // Listens before it reads the routes, so it misses no change.
        let mut changes = Changes::open().context("listen to events of routes")?;
        let mut deletions = guard::deletions().context("listen to nf_tables")?;
        let kernel = Kernel::open().context("open a netlink socket")?;
        loop {
            self.synchronize(&kernel).await?;
            self.report.failure(PART, None);
            self.until_changed(&mut changes, &mut deletions).await?;
        }
    }

    async fn synchronize(&mut self, kernel: &Kernel) -> anyhow::Result<()> {
        // Somebody may have deleted this node's Node object, and the kubelet creates it again.
        let is_known = self.watched.nodes.contains_key(&self.node);
        let is_current = self.watched.is_current && is_known;
        let others = if is_current {
            Others::Remove
        } else {
            Others::Keep
        };
        self.set_guard().await.context("guard the tunnel port")?;
        let (peers, way) = self.desired();
        let applied = kernel
            .apply(&peers, &way, others)
            .await
            .context("set routes")?;
        self.links.extend(&applied.links);
        let mut is_done = applied.problems.is_empty();
        if is_current {
            is_done &= self.keep_nodes().await;
            is_done &= self.write_conflist(applied.mtu).await;
        }
        self.retry = (!is_done).then(|| Instant::now() + RETRY);
        self.report_node(&applied);
        Ok(())
    }

    /// Returns the desired routes.
    fn desired(&self) -> (Peers, Way) {
        let nodes = &self.watched.nodes;
        let peers = || Peers::of(&self.node, nodes);
        match self.config.mode {
            Mode::Direct => (peers(), Way::Direct),
            Mode::Vxlan => {
                let (own, vxlan) = (nodes.get(&self.node), self.config.vxlan.unwrap_or_default());
                let tunnels = own.map(|it| Tunnel::of(&self.node, it, vxlan));
                (peers(), Way::Vxlan(tunnels.unwrap_or_default()))
            }
            Mode::None => (Peers::default(), Way::Direct),
        }
    }

    /// Sets the rules that guard the tunnels, before there are tunnels. Removes them in other modes.
    async fn set_guard(&self) -> anyhow::Result<()> {
        let vxlan = self.config.vxlan.unwrap_or_default();
        let nodes = match self.config.mode {
            Mode::Vxlan => self.watched.nodes.clone(),
            _ => return spawn_blocking(guard::remove).await?,
        };
        spawn_blocking(move || guard::apply(vxlan, &nodes)).await?
    }

    fn report_node(&mut self, applied: &Applied) {
        self.report.applied(self.watched.nodes.len(), applied);
        self.report.failure(NODE, self.node_failure());
    }

    /// Returns why this node has no network for pods.
    fn node_failure(&self) -> Option<String> {
        let (name, watched) = (&self.node, &self.watched);
        let own = watched.nodes.get(name);
        if watched.is_foreign || watched.is_current && own.is_none() {
            return Some(format!(
                "the API server lists no node {name}; set the key node to this node's name"
            ));
        }
        let is_without = watched.is_current && own.is_some_and(|it| it.pod_cidrs.is_empty());
        is_without.then(|| {
            format!(
                "node {name} has no podCIDR; start kube-controller-manager with \
                 --allocate-node-cidrs and --cluster-cidr"
            )
        })
    }

    /// Keeps the nodes for the next start of the agent. Returns whether that succeeded.
    async fn keep_nodes(&mut self) -> bool {
        let Some(nodes) = self.watched.unsaved() else {
            return true;
        };
        let file = self.config.state_file.clone();
        let written = spawn_blocking(move || saved::write(&file, &nodes)).await;
        let failure = written.map_err(Into::into).flatten().err();
        if failure.is_none() {
            self.watched.set_saved();
        }
        self.report.error(FILE, failure.as_ref());
        failure.is_none()
    }

    /// Writes this node's network configuration, if the node has networks for pods. Returns
    /// whether there is nothing more to do.
    async fn write_conflist(&self, mtu: Option<u32>) -> bool {
        let own = self.watched.nodes.get(&self.node);
        let own = own.filter(|it| !it.pod_cidrs.is_empty());
        let (Some(own), Some(conflist)) = (own, self.config.conflist.clone()) else {
            return true;
        };
        let filled = conflist.filled(&own.pod_cidrs, &self.config.cluster_cidrs, mtu);
        let directory = self.shared.directories.networks.clone();
        let written = spawn_blocking(move || conflist::write(&directory, &conflist, &filled)).await;
        let failure = written.map_err(Into::into).flatten().err();
        self.report.error(CONFLIST, failure.as_ref());
        failure.is_none()
    }

    /// Waits until the routes may differ from the desired ones.
    async fn until_changed(
        &mut self,
        changes: &mut Changes,
        deletions: &mut Events<()>,
    ) -> anyhow::Result<()> {
        loop {
            self.report.api(API, self.api.failure());
            let retry = self.retry.unwrap_or_else(Instant::now);
            tokio::select! {
                change = changes.next(&self.links) => {
                    change.context("the socket for events of routes ended")?;
                    break;
                }
                deletion = deletions.recv() => {
                    deletion.context("the thread that listens to nf_tables ended")??;
                    break;
                }
                event = self.api.next() => {
                    let is_change = event.is_some_and(|it| self.watched.take(it));
                    if is_change {
                        break;
                    }
                }
                () = sleep_until(retry), if self.retry.is_some() => break,
            }
        }
        // Many events come together. One synchronization is enough for them.
        sleep(SETTLE).await;
        while let Some(event) = self.api.next().now_or_never() {
            event.map(|it| self.watched.take(it));
        }
        while let Some(change) = changes.next(&self.links).now_or_never() {
            change.context("the socket for events of routes ended")?;
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

/// Time from the first event until routes are set again.
const SETTLE: Duration = Duration::from_millis(50);

/// Pause after which failed changes are tried again.
const RETRY: Duration = Duration::from_secs(5);
