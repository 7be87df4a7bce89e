//! Serves a plugin on a Unix socket, with limits that no peer can exceed.

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

/// Accepts connections and serves them. Connections outlive the returned future: the kubelet keeps
/// the one that it has after it removed the socket's name.
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
        // A kubelet that no longer answers loses its stream and has to be found again.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .serve_with_incoming(service, connections)
        .await
}

/// Places for connections. Clones share them.
pub(crate) type Places = Arc<Semaphore>;

/// Returns the places for connections of a plugin.
pub(crate) fn places() -> Places {
    Arc::new(Semaphore::new(MOST_CONNECTIONS))
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((io, _)) => return io,
            // For example, the process has too many open files.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A connection, counted while it lives.
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

/// The most connections to a plugin. Others wait.
const MOST_CONNECTIONS: usize = 8;

/// The most calls on a connection at once. Others wait.
const MOST_CALLS: usize = 8;

/// The longest request in bytes: the IDs of ten thousand devices, twice.
const LONGEST_REQUEST: usize = 512 * 1024;

/// The time after which a silent connection is tried.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The time before the next attempt to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);
