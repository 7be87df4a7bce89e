//! Removes the cluster network from a node that leaves the cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use cluster::{Kernel, Others, Peers, Way};
use cni::files::if_present;
use tokio::task::spawn_blocking;

use super::config::Config;
use super::{conflist, guard, key};

/// Removes routes, devices, rules, the saved nodes, WireGuard keys, and the conflist in `networks`, if
/// the agent has written it. Returns a line for each. May run again; does not stop a running agent,
/// which makes them again.
///
/// # Errors
/// One of them cannot be removed. The others before it are removed.
pub(crate) async fn clean_up(config: &Config, networks: &Path) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    // Without the conflist, the runtime starts no pod that would lack the routes.
    let own = config.conflist.as_ref();
    let removed = own.map(|it| conflist::remove(networks, it)).transpose()?;
    if let Some(path) = removed.flatten() {
        lines.push(format!("removed {}", path.display()));
    }
    let mut kernel = Kernel::open().context("open a netlink socket")?;
    let (none, way) = (Peers::default(), Way::Direct);
    let removed = kernel.apply(&none, &way, Others::Remove).await;
    let count = removed.context("remove routes")?.changes;
    // A refused removal counts as one. So look again.
    let found = kernel.apply(&none, &way, Others::Remove).await;
    let left = found.context("look for routes")?.changes;
    ensure!(
        left == 0,
        "{left} routes, neighbours or devices are still there: is an agent running, or does this \
         process lack CAP_NET_ADMIN?"
    );
    lines.push(format!("removed {count} routes, neighbours and devices"));
    spawn_blocking(guard::remove)
        .await?
        .context("remove the rules of the tunnel port")?;
    spawn_blocking(|| attach::set_cluster_networks(&BTreeSet::new()))
        .await?
        .context("remove the networks without masquerading")?;
    let saved = &config.state_file;
    let removed = if_present(fs::remove_file(saved));
    if removed
        .with_context(|| format!("remove {}", saved.display()))?
        .is_some()
    {
        lines.push(format!("removed {}", saved.display()));
    }
    lines.extend(key::remove(&config.key_file())?);
    Ok(lines.join("\n") + "\n")
}
