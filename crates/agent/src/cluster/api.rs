//! Receives the cluster's nodes from the API server.

use std::future::pending;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::Error::{InitialListFailed, WatchStartFailed};
use kube::runtime::watcher::{self, watcher};
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

    /// Returns when the last failure counts as over. A watch that continues sends nothing while no node
    /// changes, so only time without a new failure shows that it works.
    fn quiet(&self) -> Option<Instant> {
        let failure = self.failure.as_ref().filter(|_| self.has_listed)?;
        Some(failure.time + QUIET)
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
    let (mut nodes, mut pauses, mut failing) = (None, WatchPauses::default(), None);
    loop {
        let event = next(&access, &mut nodes, failing).await;
        let is_failure = event.is_err();
        failing = is_failure.then(|| failing.unwrap_or_else(Instant::now));
        if sender.send(event).await.is_err() {
            return;
        }
        if is_failure {
            pauses.wait().await;
        }
    }
}

/// Returns the next event of `nodes`, whose requests fail since `failing`. If other credentials may help,
/// reads them again and lists the nodes anew. Otherwise, the watch continues, because all agents together
/// must not list all nodes after each restart of the API server.
async fn next(
    access: &Access,
    nodes: &mut Option<NodeEvents>,
    failing: Option<Instant>,
) -> anyhow::Result<Event> {
    let events = match nodes {
        Some(events) => events,
        None => nodes.insert(access.nodes().await?),
    };
    let event = events.next().await.context("the watch ended")?;
    let is_over = match &event {
        Err(InitialListFailed(_)) => true,
        // 410: the API server has forgotten where the watch was.
        Err(WatchStartFailed(kube::Error::Api(it))) => matches!(it.code, 401 | 403 | 410),
        // A server that refuses the client's certificate closes the connection.
        Err(WatchStartFailed(_)) => failing.is_some_and(|it| it.elapsed() > LONG_OUTAGE),
        _ => false,
    };
    if is_over {
        *nodes = None;
    }
    Ok(event?)
}

/// Events of a watch, and failures, without an end.
type NodeEvents = BoxStream<'static, watcher::Result<Event>>;

/// The pauses of a watch after failures: exponential backoff with jitter, unlike `retry::Pauses`,
/// because all agents of a cluster lose the API server at once. They become short again only after
/// [`QUIET`], so a watch that connects and soon fails does not shorten them.
#[derive(Default)]
struct WatchPauses(Option<(ExponentialBackoff, Instant)>);

impl WatchPauses {
    async fn wait(&mut self) {
        let last = self.0.take().filter(|it| it.1.elapsed() < QUIET);
        let mut pauses = last.map_or_else(Self::short, |it| it.0);
        let pause = pauses.next();
        self.0 = Some((pauses, Instant::now()));
        sleep(pause.unwrap_or(LONGEST_PAUSE)).await;
    }

    fn short() -> ExponentialBackoff {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(SHORTEST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .without_max_times()
            .with_jitter();
        pauses.build()
    }
}

impl Access {
    /// Returns a new watch of all nodes, with the current credentials.
    async fn nodes(&self) -> anyhow::Result<NodeEvents> {
        let nodes = Api::<NodeObject>::all(self.client().await?);
        // With one length, all agents that lost the API server together would begin each watch together.
        let random = RandomState::new().build_hasher().finish() % WATCH_SPREAD;
        let seconds = LONGEST_WATCH.saturating_sub(u32::try_from(random).unwrap_or_default());
        let options = watcher::Config::default().page_size(PAGE).timeout(seconds);
        Ok(watcher(nodes, options).boxed())
    }

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
        // The pauses are those of `WatchPauses`; until then, kube would try for minutes in silence.
        config.default_retry = false;
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

/// Seconds after which the API server ends a watch, so that the agent notices one that is gone; less up to
/// [`WATCH_SPREAD`].
const LONGEST_WATCH: u32 = 70;
const WATCH_SPREAD: u64 = 20;

/// Time limit for the next data of an answer.
const LONGEST_SILENCE: Duration = Duration::from_secs(73);

/// Time of failures after which the agent reads its credentials again, whatever the failures.
const LONG_OUTAGE: Duration = Duration::from_mins(5);

/// The first pause after a failure. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Time without a failure after which the API server must have answered: longer than a pause with jitter, a
/// connection and silence together.
const QUIET: Duration = Duration::from_secs(100);
