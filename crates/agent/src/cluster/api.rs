//! Receives the cluster's nodes from the API server.

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use backon::ExponentialBuilder;
use futures::StreamExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, ExponentialBackoff, watcher};
use kube::{Api, Client};
use serde::Deserialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::object::NodeObject;

/// An event of the watch.
pub(super) type Event = watcher::Event<NodeObject>;

/// How the agent reaches the API server. Without keys: by the service account of its pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Access {
    /// A file with the API server's URL and the agent's credentials.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's URL, in place of the kubeconfig's, or of the address of the Service
    /// `kubernetes`, which needs kube-proxy.
    pub server: Option<String>,
}

/// A watch of the cluster's nodes, by a task that ends when this value is dropped.
pub(super) struct Watch {
    events: Receiver<anyhow::Result<Event>>,
    has_listed: bool,
    failure: Option<Failure>,
    _task: JoinSet<()>,
}

/// Why the API server does not send nodes, and when that was found.
struct Failure {
    error: anyhow::Error,
    time: Instant,
}

impl Watch {
    /// Starts the task. Has to be called in a runtime of tokio.
    pub fn start(access: Access) -> Self {
        let (sender, events) = channel(MOST_WAITING);
        let mut task = JoinSet::new();
        task.spawn(forward(access, sender));
        let failure = anyhow!(NOT_LISTED);
        Self {
            events,
            has_listed: false,
            failure: Some(Failure::now(failure)),
            _task: task,
        }
    }

    /// Waits for an event. Returns `None` if [`Self::failure`] has changed instead. May be dropped
    /// while it waits.
    pub async fn next(&mut self) -> Option<Event> {
        let received = match self.quiet() {
            Some(quiet) => timeout_at(quiet, self.events.recv()).await,
            None => Ok(self.events.recv().await),
        };
        match received {
            Ok(Some(Ok(event))) => {
                self.has_listed |= matches!(event, Event::InitDone);
                // Each attempt to list begins with this event.
                if self.has_listed && !matches!(event, Event::Init) {
                    self.failure = None;
                }
                Some(event)
            }
            Ok(Some(Err(error))) => {
                self.failure = Some(Failure::now(error));
                None
            }
            // The task has panicked, which ends the agent.
            Ok(None) => pending().await,
            Err(_) => {
                self.failure = None;
                None
            }
        }
    }

    /// Returns why the API server sends no nodes; `None` if it does.
    pub fn failure(&self) -> Option<&anyhow::Error> {
        self.failure.as_ref().map(|it| &it.error)
    }

    /// Returns when the last failure counts as over. A working watch sends nothing while no node
    /// changes, so only time without a new failure shows that it works.
    fn quiet(&self) -> Option<Instant> {
        let failure = self.failure.as_ref().filter(|_| self.has_listed)?;
        Some(failure.time + 2 * LONGEST_PAUSE)
    }
}

impl Failure {
    fn now(error: anyhow::Error) -> Self {
        Self {
            error,
            time: Instant::now(),
        }
    }
}

/// Sends the events of a watch until the receiver is dropped. After a failure, pauses and goes on.
async fn forward(access: Access, sender: Sender<anyhow::Result<Event>>) {
    loop {
        let client = match access.client().await {
            Ok(client) => client,
            Err(error) => {
                if sender.send(Err(error)).await.is_err() {
                    return;
                }
                sleep(LONGEST_PAUSE).await;
                continue;
            }
        };
        let nodes = Api::<NodeObject>::all(client);
        let options = watcher::Config::default().page_size(PAGE);
        let mut events = watcher(nodes, options)
            .backoff(WatchPauses::default())
            .boxed();
        while let Some(event) = events.next().await {
            if sender.send(event.map_err(Into::into)).await.is_err() {
                return;
            }
        }
    }
}

/// The pauses of a watch after failures: exponential backoff with jitter, unlike `retry::Pauses`,
/// because all agents of a cluster lose the API server at once. Resets only 2 ×
/// [`LONGEST_PAUSE`] after the last failure, so a watch that connects and soon fails does not reset
/// it.
struct WatchPauses {
    pauses: ExponentialBackoff,
    last: Option<Instant>,
}

impl Default for WatchPauses {
    fn default() -> Self {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(SHORTEST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .without_max_times()
            .with_jitter();
        Self {
            pauses: pauses.into(),
            last: None,
        }
    }
}

impl Iterator for WatchPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.last = Some(Instant::now());
        self.pauses.next()
    }
}

impl Backoff for WatchPauses {
    fn reset(&mut self) {
        if self.last.is_some_and(|it| it.elapsed() > 2 * LONGEST_PAUSE) {
            *self = Self::default();
        }
    }
}

impl Access {
    /// Returns a client with the current credentials.
    ///
    /// # Errors
    /// They are missing or invalid.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)?;
                kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
            }
            None => kube::Config::incluster().context("no kubeconfig, and no service account")?,
        };
        if let Some(server) = &self.server {
            config.cluster_url = server
                .parse()
                .with_context(|| format!("server {server:?}"))?;
        }
        config.connect_timeout = Some(LONGEST_CONNECT);
        config.read_timeout = Some(LONGEST_SILENCE);
        Ok(Client::try_from(config)?)
    }
}

/// Nodes in one answer of a list. A node with its images and managed fields has 10 to 30 KB.
const PAGE: u32 = 100;

/// Maximum number of events that wait for the event loop.
const MOST_WAITING: usize = 256;

/// The failure until the first list of nodes.
pub(super) const NOT_LISTED: &str = "has not listed the nodes yet";

/// Time limit for a connection to the API server.
const LONGEST_CONNECT: Duration = Duration::from_secs(5);

/// Time limit for the next data of an answer. The API server ends a watch after 290 s.
const LONGEST_SILENCE: Duration = Duration::from_secs(310);

/// The first pause after a failure. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
