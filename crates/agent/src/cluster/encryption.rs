//! The key of this node in the mode `wireguard`, and its announcement.

use cluster::{Applied, Problem, PublicKey};
use tokio::task::spawn_blocking;

use super::config::{Config, Mode};
use super::key::{self, Keys};
use super::own_node::OwnNode;
use super::report::Report;
use super::watched::Watched;

/// Returns the keys of this node, if packets are encrypted by them.
pub(super) async fn keys(config: &Config, watched: &Watched, report: &Report) -> Option<Keys> {
    if config.mode != Mode::Wireguard {
        return None;
    }
    let (file, announced) = (config.key_file(), watched.announcements());
    let loaded = spawn_blocking(move || key::load(&file, &announced)).await;
    let loaded = loaded.map_err(Into::into).flatten();
    report.error(KEY, loaded.as_ref().err());
    loaded.ok()
}

/// Announces the key of this node, unless it is the one that the API server has, `announced`.
pub(super) fn announce(
    own_node: &mut OwnNode,
    keys: Option<&Keys>,
    announced: Option<PublicKey>,
    report: &Report,
) {
    match keys {
        Some(keys) if announced != Some(keys.announced.public()) => {
            own_node.announce(&keys.announced);
        }
        _ => report.failure(ANNOUNCEMENT, None),
    }
}

/// Returns why the other nodes cannot reach the pods of this one by WireGuard, for which they need its
/// key.
pub(super) fn failure(
    applied: &Applied,
    keys: Option<&Keys>,
    announced: Option<PublicKey>,
) -> Option<String> {
    let mut problems = applied.problems.iter();
    if let Some(problem) = problems.find(|it| matches!(it, Problem::WireGuard { .. })) {
        return Some(problem.to_string());
    }
    let Some(keys) = keys.filter(|_| applied.mtu.is_some()) else {
        return Some("waits for the WireGuard key".to_owned());
    };
    let mut own = [&keys.own, &keys.announced].into_iter();
    let is_known = own.any(|it| Some(it.public()) == announced);
    (!is_known).then(|| UNANNOUNCED.to_owned())
}

const UNANNOUNCED: &str = "waits until the API server has the WireGuard key of this node";

/// Names under which the agent's health shows failures.
const KEY: &str = "cluster: key";
pub(super) const ANNOUNCEMENT: &str = "cluster: key announcement";
