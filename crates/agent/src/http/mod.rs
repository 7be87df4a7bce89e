//! Metrics and health over HTTP: `/metrics` and `/healthz`.
//!
//! The server never trusts its clients. A connection carries one request. The size of the request's
//! headers and the time of the connection are limited. [`places`] limits the connections, so that
//! slow scrapers and silent clients do not delay an answer of `/healthz`. Scrapes within
//! [`text::FRESH`] share one reading of the node.

mod address;
mod listener;
mod places;
mod text;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::{Exporter, MOST_PODS};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::yield_now;
use tokio::time::timeout;

pub(crate) use self::address::Address;
use self::listener::Listener;
use self::places::{Client, Places, keep};
use self::text::Text;
use crate::defaults::yes;
use crate::health::Health;
use crate::retry::Pauses;
use crate::shared::Shared;

/// The section `metrics` of the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// Where the server listens.
    #[serde(default)]
    pub listen: Address,
    /// Whether `listen` may be an address that other hosts can reach.
    #[serde(default)]
    pub remote: bool,
    /// Whether the metrics contain series of single pods.
    #[serde(default = "yes")]
    pub pods: bool,
    /// Log files of the plugins, in addition to those that network configurations name.
    #[serde(default)]
    pub log_files: Vec<PathBuf>,
}

impl Config {
    /// Checks that other hosts reach the server only if the configuration allows it.
    ///
    /// # Errors
    /// The address is neither a loopback address nor a Unix socket, and `remote` is false.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.remote || self.listen.is_local(),
            "metrics.listen: other hosts can reach {}; to allow that, set metrics.remote to true",
            self.listen
        );
        Ok(())
    }
}

/// What the handlers of `/metrics` and `/healthz` need.
#[derive(Clone)]
struct Served {
    text: Arc<Text>,
    health: Health,
}

/// Serves `/metrics` and `/healthz` until the agent ends. `registry` has the metrics of all parts.
pub(crate) async fn run(config: Config, shared: Shared, registry: Registry) -> anyhow::Result<()> {
    let Shared {
        directories,
        health,
    } = shared;
    let listen = config.listen.clone();
    let exporter = Mutex::new(Exporter::new(registry));
    let text = Text::of(move || {
        let (pods, files) = (config.pods.then_some(MOST_PODS), config.log_files.clone());
        let (text, _) = exporter.lock().text(&directories, pods, files)?;
        Ok(text)
    });
    let served = Served {
        text: Arc::new(text),
        health: health.clone(),
    };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .with_state(served);
    let mut pauses = Pauses::new();
    loop {
        let Err(error) = serve(&listen, &router, &health).await;
        health.set(PART, Some(format!("{error:#}")));
        pauses.wait().await;
    }
}

/// Listens, accepts connections, and starts a task that answers each, until the listening socket
/// fails.
async fn serve(listen: &Address, router: &Router, health: &Health) -> anyhow::Result<Infallible> {
    let listener = Listener::bind(listen).await?;
    health.set(PART, None);
    let mut places = Places::default();
    loop {
        let stream = listener.accept().await?;
        let (client, router) = (places.client(), router.clone());
        let task = tokio::spawn(answer(stream, router, client.clone()));
        places.admit(client, task.abort_handle());
        // Lets the new task read its request before this loop accepts the next connection. So newer
        // connections cannot make `admit` close the connection of a `/healthz` request that has
        // already arrived.
        yield_now().await;
    }
}

/// Answers one request on `stream`. The handler of `/metrics` uses `client` to wait for its turn.
/// Ignores all errors, because they are faults of the client.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, client: Client) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(client.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_REQUEST)
        .max_buf_size(LARGEST_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    timeout(LONGEST_CONNECTION, connection).await.ok();
}

async fn metrics(State(served): State<Served>, Extension(client): Extension<Client>) -> Response {
    let place = client.place().await;
    match served.text.current().await {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], keep(text, place)).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason:#}\n")).into_response(),
    }
}

async fn healthz(State(served): State<Served>) -> Response {
    let failures = served.health.failures();
    if failures.is_empty() {
        return "ok\n".into_response();
    }
    let lines = failures.into_iter();
    let lines = lines.map(|(part, reason)| format!("{part}: {}\n", reason.replace('\n', " ")));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect::<String>()).into_response()
}

const PART: &str = "metrics";

/// The content type of the `OpenMetrics` text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Largest request line with headers, in bytes.
const LARGEST_HEADERS: usize = 16 << 10;

/// Time limit for a client to send its request.
const LONGEST_REQUEST: Duration = Duration::from_secs(2);

/// Time limit of a connection, from its acceptance to the end of the answer.
const LONGEST_CONNECTION: Duration = Duration::from_secs(10);
