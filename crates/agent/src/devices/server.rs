//! Serves a plugin on a Unix socket, with limits on connections, calls and the size of requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream;
use kubelet::device_plugin::device_plugin_server::DevicePluginServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::plugin::Plugin;

/// Serves `plugin` on `listener`: accepts as many connections at a time as `places` has permits,
/// and serves each in a task. So open connections stay if the returned future is dropped. The
/// kubelet needs this: it still uses its connection after it has deleted the socket's file.
pub(crate) async fn serve(
    listener: UnixListener,
    plugin: Plugin,
    places: Places,
) -> Result<(), tonic::transport::Error> {
    let connections = stream::unfold((listener, places), |(listener, places)| async move {
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        let io = accept(&listener).await;
        let connection = Connection { io, _place: place };
        Some((Ok::<_, io::Error>(connection), (listener, places)))
    });
    let service = DevicePluginServer::new(plugin).max_decoding_message_size(LONGEST_REQUEST);
    Server::builder()
        .concurrency_limit_per_connection(MOST_CALLS)
        .max_concurrent_streams(u32::try_from(MOST_CALLS).ok())
        // If the kubelet does not answer pings, its connection ends, and with it its stream of
        // device lists. The agent then registers again.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .serve_with_incoming(service, connections)
        .await
}

/// A semaphore with a permit for each connection that may be open. Clones share the permits.
pub(crate) type Places = Arc<Semaphore>;

/// Returns a semaphore with [`MOST_CONNECTIONS`] permits, for the connections to one plugin.
pub(crate) fn places() -> Places {
    Arc::new(Semaphore::new(MOST_CONNECTIONS))
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((io, _)) => return io,
            // Tries again, because the cause may pass: for example, too many open files.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A connection to a plugin. It counts towards [`MOST_CONNECTIONS`] until this value is dropped.
struct Connection {
    io: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// Maximum number of connections to a plugin. Further connections wait.
const MOST_CONNECTIONS: usize = 8;

/// Maximum number of calls on a connection at a time. Further calls wait.
const MOST_CALLS: usize = 8;

/// Maximum size of a request in bytes. A request with the IDs of ten thousand devices in two lists
/// is smaller.
const LONGEST_REQUEST: usize = 512 * 1024;

/// The time without data after which the agent checks that the peer of a connection still answers.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Pause after a failed attempt to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);
