//! Serves a plugin on a Unix socket, with limits on connections, calls and the size of requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kubelet::device_plugin::device_plugin_server::DevicePluginServer;
use tokio::net::UnixListener;

use super::plugin::Plugin;

/// Serves `plugin` on `listener`: accepts as many connections at a time as the plugin has places,
/// and serves each in a task. So open connections stay if the returned future is dropped. The
/// kubelet needs this: it still uses its connection after it has deleted the socket's file.
pub(crate) async fn serve(mut listener: UnixListener, plugin: Plugin) -> Infallible {
    let places = Arc::clone(&plugin.places);
    let service = DevicePluginServer::new(plugin).max_decoding_message_size(LONGEST_REQUEST);
    let service = TowerToHyperService::new(service);
    let mut server = http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_CALLS)
        // If the kubelet does not answer pings, its connection ends, and with it its stream of
        // device lists. The agent then registers again.
        .keep_alive_interval(KEEPALIVE);
    loop {
        // Waiting fails only if the semaphore is closed, and no code closes it. Accepting tries
        // again if it fails, for example because too many files are open.
        let place = Arc::clone(&places).acquire_owned().await;
        let (stream, _) = Listener::accept(&mut listener).await;
        let connection = server.serve_connection(TokioIo::new(stream), service.clone());
        tokio::spawn(async move {
            // An error is a fault of the peer.
            connection.await.ok();
            drop(place);
        });
    }
}

/// Maximum number of calls on a connection at a time. Further calls wait.
const MOST_CALLS: u32 = 8;

/// Maximum size of a request in bytes. A request with the IDs of ten thousand devices in two lists
/// is smaller.
const LONGEST_REQUEST: usize = 512 * 1024;

/// The time without data after which the agent checks that the peer of a connection still answers.
const KEEPALIVE: Duration = Duration::from_secs(30);
