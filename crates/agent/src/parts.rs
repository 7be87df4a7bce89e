//! Starts the configured parts, and ends them.

use anyhow::Context as _;
use cni::note;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::ending::End;
use crate::health::Health;
use crate::repair::Guard;
use crate::shared::Shared;
use crate::{cluster, devices, gc, http, repair, uplink};

/// Runs all configured parts of the agent until `end` gets a message. The caller then releases
/// `guard`.
///
/// # Errors
/// A part cannot start, or ends by itself. If a service such as the kubelet fails, a part that
/// needs it does not end: the part waits for the service and shows the failure in its [`Health`].
pub(crate) async fn run(
    config: Config,
    dropped: Counter,
    guard: Guard,
    end: End,
) -> anyhow::Result<()> {
    let mut parts = start(config, dropped, &guard)?;
    if parts.is_empty() {
        note(
            "cni-agent: nothing to do: the configuration file turns on none of cluster, devices, gc, metrics, \
             repair and uplink; add a section and restart the agent",
        );
    }
    tokio::select! {
        _ = end => Ok(()),
        Some(ended) = parts.join_next() => ended.context("a part of the agent panicked")?,
    }
}

/// Starts the configured parts of the agent, each as a task. Each part registers its counters in
/// the registry, which `/metrics` shows. `dropped` counts the lines of the log that were dropped.
fn start(
    config: Config,
    dropped: Counter,
    guard: &Guard,
) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    // SIGHUP asks for a round of garbage collection. It would end an agent that never listened, so an
    // agent without the section `gc` listens, too.
    let hangups = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let shared = Shared {
        directories: config.runtime.directories(),
        health: Health::default(),
    };
    let mut registry = Registry::default();
    let own = registry.sub_registry_with_prefix("cni_agent");
    let lines = "Lines of the log that were dropped because nothing read standard error";
    own.register("log_lines_dropped", lines, dropped);
    let mut parts = JoinSet::new();
    if let Some(config) = config.cluster {
        config.check()?;
        let counters = cluster::Counters::new(own);
        parts.spawn(cluster::run(config, shared.clone(), counters));
    }
    if let Some(section) = config.devices {
        let per = devices::Per::of(config.metrics.as_ref());
        let counters = devices::Counters::new(own, per);
        parts.spawn(devices::run(section, shared.clone(), counters));
    }
    if let Some(config) = config.gc {
        let counters = gc::Counters::new(own);
        parts.spawn(gc::run(config, shared.clone(), counters, hangups));
    }
    if let Some(config) = config.repair.filter(|it| it.enabled) {
        let counters = repair::Counters::new(own);
        let is_held = config.localhost_guard && guard.take();
        counters.guards_localhost.set(is_held.into());
        parts.spawn(repair::run(config, shared.clone(), counters));
    }
    if config.uplink.is_some_and(|it| it.enabled) {
        parts.spawn(uplink::run(shared.clone(), uplink::Counters::new(own)));
    }
    // The HTTP server starts last, because its registry has the metrics of all other parts.
    if let Some(config) = config.metrics {
        config.check()?;
        parts.spawn(http::run(config, shared, registry));
    }
    Ok(parts)
}
