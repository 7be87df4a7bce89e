//! What the agent writes into the Node object of its own node.

use std::future::pending;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use cluster::PrivateKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::api::Access;
use super::object::{KEY, NETWORK_UNAVAILABLE, NodeObject};

/// The Node object of the agent's node. A task sends each request, so an API server that does not
/// answer delays no route.
pub(super) struct OwnNode {
    name: String,
    access: Access,
    request: JoinSet<anyhow::Result<()>>,
    /// When the next request may be sent.
    next: Instant,
}

impl OwnNode {
    pub fn new(name: String, access: Access) -> Self {
        Self {
            name,
            access,
            request: JoinSet::new(),
            next: Instant::now(),
        }
    }

    /// Sets the condition `NetworkUnavailable` to false. Some clouds create nodes with this condition,
    /// and no pod is scheduled to the node until a network ends it.
    pub fn set_network_available(&mut self) {
        let now = Time(Timestamp::now());
        let condition = json!({
            "type": NETWORK_UNAVAILABLE,
            "status": "False",
            "reason": "CniAgentIsUp",
            "message": "cni-agent has made the routes to the pods of other nodes",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        });
        // Unlike a merge patch, a strategic one keeps the other conditions.
        let patch = json!({"status": {"conditions": [condition]}});
        self.patch(patch, format!("the condition {NETWORK_UNAVAILABLE}"));
    }

    /// Announces the node's WireGuard key.
    pub fn announce(&mut self, key: &PrivateKey) {
        let annotations = json!({KEY: key.announcement(&self.name)});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.patch(patch, format!("the annotation {KEY}"));
    }

    /// Changes the object, unless a request is on its way. Sends a request at most every [`INTERVAL`],
    /// because another program may change the same value again and again.
    fn patch(&mut self, patch: Value, what: String) {
        if !self.request.is_empty() {
            return;
        }
        let (access, name) = (self.access.clone(), self.name.clone());
        let time = self.next.max(Instant::now());
        self.next = time + INTERVAL;
        self.request.spawn(async move {
            sleep_until(time).await;
            let outcome = timeout(LONGEST_REQUEST, send(&access, &name, &patch)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("no answer")));
            outcome.with_context(|| format!("set {what} of {name}"))
        });
    }

    /// Waits until a request has ended. May be dropped while it waits.
    ///
    /// # Errors
    /// The API server refused the request, or did not answer.
    pub async fn outcome(&mut self) -> anyhow::Result<()> {
        match self.request.join_next().await {
            Some(outcome) => outcome?,
            None => pending().await,
        }
    }
}

async fn send(access: &Access, name: &str, patch: &Value) -> anyhow::Result<()> {
    let nodes = Api::<NodeObject>::all(access.client().await?);
    let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
    nodes.patch_status(name, &parameters, &patch).await?;
    Ok(())
}

/// The least time between two requests.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time limit for a request.
const LONGEST_REQUEST: Duration = Duration::from_secs(10);
