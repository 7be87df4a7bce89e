//! Reports pods that have devices of bandwidth and no limit.

use std::collections::BTreeSet;
use std::time::Duration;

use runtime::Directories;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use upkeep::{PodName, unlimited};

use super::config::Config;
use super::pod_resources::Known;
use super::resource::Kind;
use crate::health::Health;
use crate::shared::Shared;

/// Checks from time to time whether all pods with devices of bandwidth are limited.
pub(super) struct Unlimited {
    directories: Directories,
    /// Names of the resources that divide bandwidth.
    resources: BTreeSet<String>,
    health: Health,
    looked: Option<Instant>,
}

impl Unlimited {
    /// Looks at the pods that have devices of the rates in `config`.
    pub fn new(config: &Config, shared: &Shared) -> Self {
        let resources = config.offers.iter().map(|it| &it.resource);
        let rates = resources.filter(|it| it.kind != Kind::Tun);
        Self {
            directories: shared.directories.clone(),
            resources: rates.map(|it| it.name.clone()).collect(),
            health: shared.health.clone(),
            looked: None,
        }
    }

    /// Sets the agent's health to failing if a pod in `known` has devices of bandwidth and no
    /// limit, or if the limits cannot be read. Does nothing if the last check is younger than
    /// [`PERIOD`].
    pub async fn look(&mut self, known: &Known) {
        if self.looked.is_some_and(|it| it.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        let pods = self.pods(known);
        let directories = self.directories.clone();
        let found = spawn_blocking(move || unlimited(&directories, pods)).await;
        let failure = match found {
            Ok(Ok(pods)) => describe(&pods),
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(error) => Some(error.to_string()),
        };
        self.health.set(HEALTH, failure);
    }

    fn pods(&self, known: &Known) -> BTreeSet<PodName> {
        let limited = known.allocated.keys();
        let limited = limited.filter(|[.., resource]| self.resources.contains(resource));
        let pods = limited.map(|[namespace, pod, ..]| (namespace.clone(), pod.clone()));
        pods.collect()
    }
}

fn describe(pods: &BTreeSet<PodName>) -> Option<String> {
    let (namespace, name) = pods.first()?;
    let others = match pods.len() {
        1 => String::new(),
        count => format!(" (and {} other pods)", count - 1),
    };
    Some(format!(
        "{namespace}/{name}{others} has devices of bandwidth and no limit: set podResources of \
         bandwidth in its network, and create the pod again"
    ))
}

/// The shortest time between two checks.
const PERIOD: Duration = Duration::from_secs(30);

/// Name under which the agent's health shows pods without a limit.
const HEALTH: &str = "devices: limits";
