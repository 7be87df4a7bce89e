//! Asks the kubelet every few seconds which devices it may allocate, and which ones containers
//! have.
//!
//! The kubelet tells no device plugin that another one has registered the same resource: it still
//! reads the first one's list of devices (`registerClient` in
//! pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go of Kubernetes). When the other plugin
//! ends, the kubelet has no device of the resource. Only these answers show both.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use cni::note;
use tokio::time::sleep;

use super::allocated::Allocated;
use super::config::Config;
use super::plugin::Plugin;
use super::pod_resources::ask;
use super::unlimited::Unlimited;
use crate::health::Health;
use crate::shared::Shared;

/// Compares the kubelet's answers with the lists of devices that the agent announced.
pub(super) struct Answers {
    socket: PathBuf,
    plugins: Vec<Plugin>,
    allocated: Allocated,
    unlimited: Unlimited,
    health: Health,
    /// Why the kubelet did not answer the last request.
    failure: Option<String>,
    /// Resources of which the last answer has another number of devices than the agent announced.
    differing: BTreeMap<String, Difference>,
    /// Resources of which the kubelet has listed devices since the agent last ended their streams.
    listed: BTreeSet<String>,
}

/// The number of allocatable devices that the agent announced, and the number that the kubelet
/// lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Difference {
    announced: u64,
    listed: u64,
}

impl Answers {
    /// Compares with the lists of `plugins`. Passes each answer to `allocated`.
    pub fn new(
        config: &Config,
        plugins: Vec<Plugin>,
        allocated: Allocated,
        shared: &Shared,
    ) -> Self {
        Self {
            socket: config.pod_resources(),
            plugins,
            allocated,
            unlimited: Unlimited::new(config, shared),
            health: shared.health.clone(),
            failure: None,
            differing: BTreeMap::new(),
            listed: BTreeSet::new(),
        }
    }

    /// Asks the kubelet each [`PERIOD`], and after [`AGAIN`] if an answer has a new difference.
    pub async fn follow(&mut self) -> Infallible {
        loop {
            let before = self.differing.clone();
            self.refresh().await;
            let is_new = !self.differing.is_empty() && self.differing != before;
            sleep(if is_new { AGAIN } else { PERIOD }).await;
        }
    }

    async fn refresh(&mut self) {
        let names = self.plugins.iter().map(|it| it.resource.name.clone());
        match ask(&self.socket, &names.collect::<Vec<_>>()).await {
            Ok(known) => {
                if let Some(listed) = &known.allocatable {
                    self.compare(listed);
                }
                self.unlimited.look(&known).await;
                self.allocated.set(known);
                self.failure = None;
            }
            Err(error) => {
                let reason = Some(format!("{error:#}"));
                // A kubelet that does not read the devices may not run at all.
                if self.plugins.iter().any(Plugin::is_read) && self.failure != reason {
                    note!("devices: no list of allocated devices: {error:#}");
                    self.failure = reason;
                }
            }
        }
    }

    /// Sets the agent's health to failing if the kubelet lists another number of devices of a
    /// resource than the agent announced. After a change, the kubelet may not have read the agent's
    /// new list yet. So a difference counts only if the previous answer had the same difference,
    /// and the health is good again only without any difference.
    fn compare(&mut self, listed: &BTreeMap<String, u64>) {
        let mut differing = BTreeMap::new();
        for plugin in self.plugins.iter().filter(|it| it.is_read()) {
            let name = &plugin.resource.name;
            let announced = plugin.announced();
            let listed = listed.get(name).copied().unwrap_or_default();
            if listed > 0 {
                self.listed.insert(name.clone());
            }
            if announced != listed {
                differing.insert(name.clone(), Difference { announced, listed });
            }
        }
        let before = std::mem::replace(&mut self.differing, differing);
        let mut lasting = self.differing.clone();
        lasting.retain(|name, it| before.get(name) == Some(it));
        for (name, it) in &lasting {
            // Only once until the kubelet lists devices again: the cause may be another one.
            if it.listed == 0 && self.listed.remove(name) {
                self.register_again(name);
            }
        }
        if !lasting.is_empty() {
            let texts = lasting.iter().map(|(name, it)| it.describe(name));
            let text = texts.collect::<Vec<_>>().join("; ");
            self.health.set(HEALTH, Some(text));
        } else if self.differing.is_empty() {
            self.health.set(HEALTH, None);
        }
    }

    /// Ends the streams of a resource, so that the agent registers it again. A stream must not
    /// outlive the next registration: in some versions of the kubelet, its end would also end the
    /// newer stream.
    fn register_again(&self, name: &str) {
        note!("devices: the kubelet no longer lists devices of {name}: the agent registers again");
        let plugins = self.plugins.iter();
        let of_name = plugins.filter(|it| it.resource.name == name);
        of_name.for_each(Plugin::end_streams);
    }
}

impl Difference {
    fn describe(self, resource: &str) -> String {
        let Self { announced, listed } = self;
        format!(
            "the kubelet may allocate {listed} devices of {resource}, not the {announced} that the \
             agent announced; another device plugin may have registered the resource"
        )
    }
}

/// The time between two requests to the kubelet.
const PERIOD: Duration = Duration::from_secs(3);

/// The time after which the agent asks again whether a difference lasts.
const AGAIN: Duration = Duration::from_secs(1);

/// Name under which the agent's health shows that the kubelet lists another number of devices than
/// the agent announced.
const HEALTH: &str = "devices: kubelet";
